"""``python -m pyengine``: the same as the command ``pyengine``."""

from __future__ import annotations

from pyengine.doors.cli import main

if __name__ == "__main__":
    main()
