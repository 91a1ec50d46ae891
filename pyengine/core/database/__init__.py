"""How this package reaches PostgreSQL: connections, pools, notifications, errors, and SQL texts of the core.

Lives here: everything that the client and the worker share to reach the database. May not: the meaning of an
answer. The folders of workflows and of replay come before this one, so they cannot import a connection.

The way of a statement: a caller names a `Procedure` (statements/), a `ConnectionPool` (pool.py) lends a
connection that was checked and configured (connection.py, sessions.py), and an error of the database becomes
one of our errors by its SQLSTATE (error_mapping.py).
"""

from __future__ import annotations
