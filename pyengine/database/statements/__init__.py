"""Every SQL text of workers and clients, and nothing else.

Lives here: records that name a statement, say what it takes and gives, and hold its text. May not: a
connection, a value.
"""

from __future__ import annotations
