"""Names that programs import from below UCX-Py's API: `arr`, `exceptions`, `ucx_api`, `utils`."""
