"""Python imports this at start when its folder is on the path: see ``substitute``."""

from __future__ import annotations

import importlib
import os
import sys

if os.environ.get("BACKHAUL_SUBSTITUTE"):
    sys.meta_path.insert(0, importlib.import_module("substitute").InstallAfterImport())
