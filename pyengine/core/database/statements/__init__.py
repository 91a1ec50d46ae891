"""Every SQL text of workers and clients, and nothing else.

Lives here: one record for each statement: its name, its parameters and its text. May not: a connection, a
value.
"""

from __future__ import annotations
