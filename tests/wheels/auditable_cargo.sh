#!/bin/sh
# The cargo of `make wheels`, which maturin takes from the variable CARGO: it writes the crates of
# the extension into the extension (tests/wheels/audit_data.py).
unset CARGO
exec cargo-auditable auditable "$@"
