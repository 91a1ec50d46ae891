"""The administration of a database: install, migrate, lint, bundle, and the queries of the command line.

Lives here: everything that changes or inspects the schema itself, with psycopg and sqlglot. May not: run
workflows, import asyncpg, or be imported by the worker. sqlglot belongs to the extra ``admin``;
only ``lint`` needs it.
"""

from __future__ import annotations
