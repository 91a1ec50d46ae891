"""The administration of a database: install, migrate, bundle, and the queries of the command line.

Lives here: everything that changes or inspects the schema itself, with psycopg. May not: run
workflows, import asyncpg, or be imported by the worker.
"""

from __future__ import annotations
