"""The job of ``pyengine demo``: compare every installed file with the RECORD of its package.

Lives here: the program that a user could have written (`audit`), and the code that runs it in two worker
processes and kills them (`run`). May not: anything that the engine needs; print (``cli/demo.py``).
"""

from __future__ import annotations
