"""The settings of the engine's sessions, whatever their role and database set.

Lives here: the settings that the engine relies on, once, and the statements that set them. May not: when they
are set (database/sessions.py). Design: roles and databases are configured for other programs, and that must
not change how the engine works. Sessions of workers do not wait long for a lock, and those of a gateway less,
because other requests wait for them; those of clients may. Where functions and statements of users run, only
the settings of transactions and timeouts are the engine's. Its SQL functions pin what their text depends on,
so they also work in shared sessions.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

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
# drivers that read values as texts rely on these
_READ = {"datestyle": "ISO, MDY", "intervalstyle": "postgres"}
# a session whose client has vanished ends within half a minute, as its client's does (database/sessions.py)
_VANISHED = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30s",
}
# and so does its statement; some platforms of the server cannot look
_CHECKS = (
    "do $$ begin perform set_config('client_connection_check_interval', '2s', false); "
    "exception when invalid_parameter_value then null; end $$"
)
# the client gives a statement up after 60 s: then the server ends it too
_PATIENCE = {"lock_timeout": "1s", "statement_timeout": "65s"}
# a lock is often waited for twice: for its turn, and for its holder; a gateway gives a statement up after 9 s
_LITTLE_PATIENCE = {"lock_timeout": "500ms", "statement_timeout": "8s"}
# new in version 17
_NEWER = frozenset({"transaction_timeout"})


def _set(settings: dict[str, str], *, local: bool = False) -> str:
    parts = []
    for name, value in settings.items():
        part = f"set_config('{name}', '{value}', {str(local).lower()})"
        if name in _NEWER:
            part = f"case when current_setting('{name}', true) is not null then {part} end"
        parts.append(part)
    return "select " + ", ".join(parts)


def _session(settings: dict[str, str]) -> Procedure:
    return Procedure(
        signature="() for the session; several statements", sql=f"{_set(settings | _VANISHED)}; {_CHECKS}"
    )


WORKER_SETTINGS = _session(_TRANSACTIONS | _TEXTS | _READ | _PATIENCE)

CLIENT_SETTINGS = _session(_TRANSACTIONS | _TEXTS | _READ)

GATEWAY_SETTINGS = _session(_TRANSACTIONS | _TEXTS | _READ | _LITTLE_PATIENCE)

USER_SETTINGS = _session(_TRANSACTIONS)

SETTINGS = {"client": CLIENT_SETTINGS, "gateway": GATEWAY_SETTINGS, "work": USER_SETTINGS}
"""By the purpose of a connection; all others are of workers."""

CLEAN = Procedure(
    signature="() -> nothing; several statements",
    sql=(
        "reset session authorization; reset all; select pg_advisory_unlock_all(); close all; unlisten *; "
        f"discard temp; {USER_SETTINGS.sql}"
    ),
)

BEGIN = Procedure(
    signature="() -> nothing; begins a transaction with the engine's settings",
    sql="begin isolation level read committed read write not deferrable",
)

BEGIN_READING = Procedure(
    signature="() -> nothing; begins a transaction that only reads, which a standby allows too",
    sql="begin isolation level read committed read only",
)

_WITHIN = {name: value for name, value in _TRANSACTIONS.items() if name.endswith("timeout")} | _READ

SETTINGS_WITHIN = Procedure(
    signature="() until the end of the transaction",
    sql=_set(_WITHIN, local=True),
)

OWN_WITHIN = {
    "gateway": Procedure(
        signature="() until the end of the transaction", sql=_set(_WITHIN | _LITTLE_PATIENCE, local=True)
    )
}
"""By the purpose of a connection: those that each transaction sets in a shared session, whatever that has."""

_AGAINST_ALL = "('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
HOLDERS_OF_TABLES = Procedure(
    signature="() -> json [{id: tables, pid, user, state, age_ms, query, prepared}]: who has locked ours",
    sql=(
        "select coalesce(json_agg(to_json(h)), '[]')::text "
        "from (select string_agg(distinct c.relname, ', ') as id, a.pid, coalesce(a.usename, '') as user, "
        "coalesce(a.state, '') as state, "
        # of sessions of other roles the type is hidden, as durable._session has it
        "case when a.backend_type is null then '' else coalesce(a.query, '') end as query, "
        "case when a.backend_type is null then -1 "
        "else coalesce(extract(epoch from clock_timestamp() - a.xact_start) * 1000, 0) end::bigint "
        "as age_ms, '' as prepared "
        "from pg_locks l join pg_class c on c.oid = l.relation and c.relnamespace = 'durable'::regnamespace "
        "join pg_database d on d.oid = l.database and d.datname = current_database() "
        "join pg_stat_activity a on a.pid = l.pid "
        "where l.granted and l.pid <> pg_backend_pid() and l.locktype = 'relation' "
        f"and l.mode in {_AGAINST_ALL} "
        "group by a.pid, a.usename, a.state, a.query, a.xact_start, a.backend_type "
        # its locks have no process: what they have in common is a number of their own
        "union all select string_agg(distinct c.relname, ', '), 0, x.owner, 'prepared', '', "
        "(extract(epoch from clock_timestamp() - x.prepared) * 1000)::bigint, x.gid "
        "from pg_prepared_xacts x "
        "join pg_locks t "
        "on t.pid is null and t.locktype = 'transactionid' and t.transactionid = x.transaction "
        "join pg_locks l on l.pid is null and l.locktype = 'relation' "
        "and l.virtualtransaction = t.virtualtransaction "
        "join pg_class c on c.oid = l.relation and c.relnamespace = 'durable'::regnamespace "
        f"where x.database = current_database() and l.mode in {_AGAINST_ALL} "
        "group by x.gid, x.owner, x.prepared) as h"
    ),
)

IS_ODD = Procedure(
    signature="() -> boolean, true if the session's defaults differ from the engine's settings",
    sql=(
        "select bool_or(not starts_with(s.setting || ',', w.value || ',')) from pg_settings s join (values "
        + ", ".join(
            f"('{name}', '{value.partition(',')[0]}')"
            for name, value in (_TRANSACTIONS | _READ).items()
            if not name.startswith("idle_")
        )
        + ") as w (name, value) on w.name = lower(s.name)"
    ),
)
