"""What our sessions set for themselves, whatever their role and database set. Part of procedures.py.

What lives here: the settings that the engine relies on, once, and the statements that say them. What may not:
when they are said (database/sessions.py). The theory: who runs the database sets roles and databases up for
other programs, and none of that may change what we do. Three kinds of sessions differ: those of workers wait
for no lock for long, those of clients may wait, and in those where functions and statements of users run only
what begins, ends and bounds a transaction is ours. What the SQL of the engine needs in order to be read
rightly it pins itself, so that it holds where a session is nobody's own.
"""

from __future__ import annotations

from pyengine.database.statements.procedures import Procedure

__all__ = [
    "BEGIN",
    "CLEAN",
    "CLIENT_SETTINGS",
    "IS_ODD",
    "SETTINGS",
    "SETTINGS_WITHIN",
    "USER_SETTINGS",
    "WORKER_SETTINGS",
]

_TRANSACTIONS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "60s",
}
_TEXTS = {
    "jit": "off",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
# what drivers rely on that read texts
_READ = {"datestyle": "ISO, MDY", "intervalstyle": "postgres"}
# a statement that the client has given up after 60 s ends too, and no lock is waited for that long
_PATIENCE = {"lock_timeout": "1s", "statement_timeout": "65s"}
# of version 17
_NEWER = frozenset({"transaction_timeout"})


def _set(settings: dict[str, str], *, local: bool = False) -> str:
    parts = []
    for name, value in settings.items():
        part = f"set_config('{name}', '{value}', {str(local).lower()})"
        if name in _NEWER:
            part = f"case when current_setting('{name}', true) is not null then {part} end"
        parts.append(part)
    return "select " + ", ".join(parts)


WORKER_SETTINGS = Procedure(
    name="settings of a worker",
    signature="() for the session",
    sql=_set(_TRANSACTIONS | _TEXTS | _READ | _PATIENCE),
    takes="",
)

CLIENT_SETTINGS = Procedure(
    name="settings of a client",
    signature="() for the session",
    sql=_set(_TRANSACTIONS | _TEXTS | _READ),
    takes="",
)

USER_SETTINGS = Procedure(
    name="settings around statements of users", signature="() for the session", sql=_set(_TRANSACTIONS)
)

SETTINGS = {"client": CLIENT_SETTINGS, "work": USER_SETTINGS}
"""By what a connection is for; all others are of workers."""

CLEAN = Procedure(
    name="clean session",
    signature="() -> nothing; several statements",
    sql=(
        "reset session authorization; reset all; select pg_advisory_unlock_all(); close all; unlisten *; "
        f"discard temp; {USER_SETTINGS.sql}"
    ),
)

BEGIN = Procedure(
    name="begin",
    signature="() -> nothing; a transaction as ours are",
    sql="begin isolation level read committed read write not deferrable",
    takes="",
)

SETTINGS_WITHIN = Procedure(
    name="settings of a transaction",
    signature="() until the end of the transaction",
    sql=_set(
        {name: value for name, value in _TRANSACTIONS.items() if name.endswith("timeout")} | _READ, local=True
    ),
    takes="",
)

IS_ODD = Procedure(
    name="odd session",
    signature="() -> boolean, true if a transaction would begin or end otherwise than ours do",
    sql=(
        "select bool_or(not starts_with(s.setting || ',', w.value || ',')) from pg_settings s join (values "
        + ", ".join(
            f"('{name}', '{value.partition(',')[0]}')"
            for name, value in (_TRANSACTIONS | _READ).items()
            if not name.startswith("idle_")
        )
        + ") as w (name, value) on w.name = lower(s.name)"
    ),
    takes="",
)
