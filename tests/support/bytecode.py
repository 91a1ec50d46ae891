"""What Python compiles for the tests is kept, whatever the environment says.

Lives here: where the bytecode goes. Five hundred test modules, with their assertions rewritten, take half a
minute to compile, for every worker of xdist. A process of the package without bytecode starts slowly, and
tests start hundreds.
"""

from __future__ import annotations

import os
import sys

import platformdirs


def keep_bytecode() -> None:
    """Write bytecode, here and in our processes; if the tree is to have none, to the user's cache."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") or sys.dont_write_bytecode:
        folder = platformdirs.user_cache_path("pyengine-tests") / "bytecode"
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
