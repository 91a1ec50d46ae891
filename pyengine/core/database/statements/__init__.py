"""Every SQL text of the core of workers and clients, and nothing else.

Lives here: one record for each statement: its name, its parameters and its text. May not: a connection, a
value. Features and doors have texts of their own, in modules of this name.
"""

from __future__ import annotations
