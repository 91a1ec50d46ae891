"""How this package reaches PostgreSQL: connections, pools, notifications, errors, and every SQL text.

Lives here: what all that speak to the database share. May not: what an answer means; and code of workflows
and of replay stands before this folder, so it cannot reach a connection.

The way of a statement: a caller names a `Procedure` (statements/), a `ConnectionPool` (pool.py) lends a
connection that was checked and made ours (connection.py, sessions.py), and a refusal comes back as one of our
errors by its SQLSTATE (error_mapping.py).
"""

from __future__ import annotations
