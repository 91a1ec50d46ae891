"""Debian's plpgsql_check on a PostgreSQL 15, without installing either: the stronger second opinion on
PL/pgSQL bodies.

The package is fetched with apt-get into a cache folder, unpacked there, and its functions are created with
the full path of the library. Where there is no PostgreSQL 15, no apt-get or no package, `Unobtainable` says
why; then only ``support/plpgsql.py`` judges.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from pyengine.doors.embedded.binaries import Binaries, binaries_of_major

MAJOR = 15
PACKAGE = f"postgresql-{MAJOR}-plpgsql-check"


class Unobtainable(Exception):
    """The check cannot be had on this machine; the text says why."""


def server_programs() -> Binaries:
    """Debian's PostgreSQL 15, for which the package is built.

    Raises:
        Unobtainable: it is not installed here.
    """
    found = binaries_of_major(MAJOR)
    if found is None or found.source != "Debian":
        raise Unobtainable(f"no PostgreSQL {MAJOR} of Debian on this machine")
    return found


def unpack(cache: Path) -> Path:
    """Fetch and unpack the package once; return the folder that stands for ``/``.

    Raises:
        Unobtainable: no apt-get here, or it does not have the package.
    """
    root = cache / "root"
    if not (root / "usr").exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Unobtainable("no apt-get on this machine")
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o755)
        got = subprocess.run(
            ["apt-get", "download", "-q", PACKAGE], cwd=cache, capture_output=True, text=True
        )
        packages = sorted(cache.glob(f"{PACKAGE}_*.deb"))
        if not packages:
            raise Unobtainable(f"apt-get has no {PACKAGE}: {got.stderr.strip()[-200:]}")
        subprocess.run(["dpkg-deb", "-x", str(packages[-1]), str(root)], check=True)
    return root


def create(conn: psycopg.Connection[TupleRow], root: Path) -> None:
    """Create the checking functions in schema public of one database."""
    library = root / f"usr/lib/postgresql/{MAJOR}/lib/plpgsql_check"
    scripts = sorted((root / f"usr/share/postgresql/{MAJOR}/extension").glob("plpgsql_check--*.sql"))
    text = scripts[-1].read_text(encoding="utf-8")
    text = re.sub(r"^\\echo.*$", "", text, flags=re.M)
    conn.execute(text.replace("MODULE_PATHNAME", str(library)).replace("@extschema@", "public").encode())


def findings(conn: psycopg.Connection[TupleRow], schema: str) -> list[str]:
    """What plpgsql_check has against the functions of a schema, warnings about unused names included.

    Left out: warnings that an assignment casts (42804), since domains and their base types meet everywhere;
    a COMMIT that is refused (2D000), where the body catches that, as durable.wait does to learn where it is.
    """
    rows = conn.execute(
        "select p.oid::regprocedure::text, c.level, c.lineno, c.sqlstate, c.message "
        "from pg_proc p join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql', "
        "lateral public.plpgsql_check_function_tb(p.oid, fatal_errors => false) c "
        "where p.pronamespace = %s::regnamespace and p.prorettype <> 'trigger'::regtype "
        "and not (c.sqlstate = '42804' and c.level = 'warning') "
        "and not (c.sqlstate = '2D000' and p.prosrc ~ 'exception when invalid_transaction_termination') "
        "order by 1, 3",
        (schema,),
    ).fetchall()
    return [
        f"{function}:{line or 0}: {level} {code} {message}" for function, level, line, code, message in rows
    ]
