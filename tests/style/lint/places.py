"""House rules about places: which file may do what, and that everything else goes through it.

Lives here: the laws "one place each" as rules about tokens of bodies. May not: look at headers or names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyengine.core.sources import SCHEMA
from tests.style.lint.inventory import Found, Inventory, Routine, Rule, Token, Tokens, at, of_schema, split

__all__ = ["RULES"]

CLOCKS = frozenset(
    [
        "now",
        "clock_timestamp",
        "statement_timestamp",
        "transaction_timestamp",
        "current_timestamp",
        "current_date",
        "current_time",
        "localtime",
        "localtimestamp",
        "timeofday",
    ]
)
POWERS = frozenset({"power", "pow", "exp", "dpow", "dexp", "factorial"})
# files that compute powers: backoff, and the exact digits of floats, whose exponents are a few bits
GROWERS = frozenset({"backoff", "datums"})
ROW_LOCKS = (("for", "update"), ("for", "no", "key", "update"), ("for", "share"), ("for", "key", "share"))
# files that compete for rows and never wait: only with SKIP LOCKED
SKIPPERS = frozenset(
    {
        "try_locks",
        "call_try_locks",
        "side_rows",
        "delivery",
        "push",
        "unblock_delivery",
        "search",
        "leases",
        "tasks",
        "workers",
        "row_waits",
        "claims",
        "removal",
        "generations",
        "retention",
        "firing",
        "tick",
        "blocked",
        "closures",
        "collection",
        "snapshots",
        "call_retention",
        "adoption",
    }
)
# files whose functions lock and do nothing else
LOCKERS = frozenset({"locks", "side_rows", "try_locks"})
# who writes verdicts, in settlement: for many promises, and for one run that nobody waits for
SETTLERS = ("_settle_rows", "_settle_single")
# files that make or drop partitions, or use tables or functions of users: none of it has a static form
DYNAMIC = frozenset({"call_function", "partitions", "removal", "retention", "watches", "row_waits"})
# types that the grammar knows itself, so that no path is searched for them
GRAMMAR = frozenset({"integer", "bigint", "smallint", "boolean", "real", "numeric", "interval"})
# what a trigger calls the rows that its statement changed; such tables have no schema
TRANSITION_TABLES = frozenset({"old_rows", "new_rows"})
# files that must not let an error through: the envelope and the tick answer it, code of users may raise any
CATCHERS = frozenset({"rpc", "watches", "row_waits", "services", "sql_steps", "partitions", "retention"})


# files that write references to large values, or look at them
DATA_READERS = frozenset({"large_values", "check_values", "check_scope"})


def calls(inventory: Inventory) -> Found:
    """Functions and views are used by their own file and by later ones only."""
    where: dict[str, list[tuple[int, str]]] = {}
    for routine in inventory.routines:
        where.setdefault(routine.name, []).append(routine.statement.file.order)
    for item in inventory.items:
        if item.kind == "view":
            where.setdefault(item.name, []).append(item.statement.file.order)
    for name, statement, tokens in inventory.bodies():
        for index in range(len(tokens)):
            callee = of_schema(tokens, index)
            if callee in where and min(where[callee]) > statement.file.order:
                yield statement, tokens[index].line, f"{name} uses {callee}, which comes later"


def qualified_tables(inventory: Inventory) -> Found:
    """Every table is written with its schema, so a body means the same under any search_path."""
    for name, statement, tokens in inventory.bodies():
        local = set(_ctes(tokens))
        for index, token in enumerate(tokens[:-1]):
            after = _relation_after(tokens, index)
            if after is None or after.kind == "body":
                continue
            if after.text not in local and after.text not in TRANSITION_TABLES:
                yield statement, after.line, f"{name}: {token.text} {after.text} without its schema"


def _ctes(tokens: Tokens) -> Iterator[str]:
    for index in range(1, len(tokens) - 1):
        if at(tokens, index, "as") and tokens[index + 1].text in ("(", "materialized", "not"):
            name = index - 1
            if tokens[name].text == ")":
                while name > 0 and tokens[name].text != "(":
                    name -= 1
                name -= 1
            yield tokens[name].text


def _relation_after(tokens: Tokens, index: int) -> Token | None:
    """The unqualified name that stands where a table is expected, or None."""
    word = tokens[index]
    before = tokens[index - 1].text if index else ""
    if word.kind != "word" or word.text not in ("from", "join", "into", "update"):
        return None
    if (word.text == "from" and before in ("distinct", "not")) or (
        word.text == "from" and _inside_call(tokens, index)
    ):
        return None
    if word.text == "into" and before not in ("insert", "merge"):
        return None
    if word.text == "update" and (
        before in ("for", "key", "do", "on", "or", "before", "after") or at(tokens, index + 1, "of")
    ):
        return None
    place = index + 1
    while tokens[place].text in ("only", "lateral"):
        place += 1
    name, follower = tokens[place], tokens[place + 1].text if place + 1 < len(tokens) else ""
    plain = name.kind == "quoted" or re.fullmatch(r"[a-z_]\w*", name.text) is not None
    called = follower == "(" and word.text != "into"
    if not plain or name.text in ("select", "values", "rows", "set") or follower == "." or called:
        return None
    return name


def _inside_call(tokens: Tokens, index: int) -> bool:
    """Whether this FROM belongs to extract(x from y), trim(... from y) or substring(y from 1)."""
    depth = 0
    for place in range(index - 1, 0, -1):
        depth += (tokens[place].text == ")") - (tokens[place].text == "(")
        if depth < 0:
            return tokens[place - 1].text in ("extract", "trim", "substring", "overlay", "position")
    return False


def dynamic_sql(inventory: Inventory) -> Found:
    """EXECUTE of a string stands only where partitions are made."""
    for routine in inventory.routines:
        for token in routine.body:
            if (
                token.kind == "word"
                and token.text == "execute"
                and routine.statement.file.noun not in DYNAMIC
            ):
                yield routine.statement, token.line, f"{routine.name}: dynamic execute"


def clock(inventory: Inventory) -> Found:
    """clock is the only file that reads a clock."""
    for name, statement, tokens in inventory.bodies():
        for index, token in enumerate(tokens):
            called = token.text.startswith(("current_", "local")) or at(tokens, index + 1, "(")
            if token.kind == "word" and token.text in CLOCKS and called and statement.file.noun != "clock":
                yield statement, token.line, f"{name} reads a clock: {token.text}"


def growth(inventory: Inventory) -> Found:
    """backoff is the only file with a power or shift by a variable: one of a growing counter overflows."""
    for name, statement, tokens in inventory.bodies():
        if statement.file.noun in GROWERS:
            continue
        for index, token in enumerate(tokens):
            last = index + at(tokens, index, "<", "<")
            by_variable = (token.text == "^" or last > index) and not tokens[last + 1].text.isdigit()
            called = token.text in POWERS and at(tokens, index + 1, "(")
            if token.kind == "word" and (by_variable or called):
                yield statement, token.line, f"{name}: power or shift by a variable; _backoff_ms has it"


def row_locks(inventory: Inventory) -> Found:
    """Row locks that wait stand in locks; try_locks, claims and sweeps may lock with SKIP LOCKED."""
    for name, statement, tokens in inventory.bodies():
        noun = statement.file.noun
        for index, token in enumerate(tokens):
            if token.text == "lock" and index + 1 < len(tokens) and tokens[index + 1].text == "table":
                yield statement, token.line, f"{name} locks a whole table"
            if noun in ("locks", "call_locks") or not any(at(tokens, index, *words) for words in ROW_LOCKS):
                continue
            if noun not in SKIPPERS or not _skips(tokens, index):
                words = " ".join(later.text for later in tokens[index : index + 4])
                yield statement, token.line, f"{name}: {words} outside of locks"


def _skips(tokens: Tokens, index: int) -> bool:
    """Whether the row lock that begins here is one with SKIP LOCKED."""
    return any(at(tokens, place, "skip", "locked") for place in range(index, index + 11))


def lock_names(inventory: Inventory) -> Found:
    """_lock_x waits until it has its locks, _try_lock_x takes those that are free; no other word for it."""
    for routine in inventory.routines:
        name, line = routine.name, routine.statement.line
        row_locks = [
            _skips(routine.body, index)
            for index in range(len(routine.body))
            if any(at(routine.body, index, *words) for words in ROW_LOCKS)
        ]
        called = {token.text for token in routine.body}
        tries = True in row_locks or any(text.startswith("pg_try_advisory") for text in called)
        waits = False in row_locks or any(text.startswith(("pg_advisory", "_lock_")) for text in called)
        if name.startswith("_lock_") and tries:
            yield routine.statement, line, f"{name} tries a lock: _try_lock_"
        elif name.startswith("_try_lock_") and waits:
            yield routine.statement, line, f"{name} waits for a lock: _lock_"
        elif name.startswith(("_take_", "_try_")) and not name.startswith("_try_lock_"):
            yield routine.statement, line, f"{name}: say _lock_, _try_lock_, or another word"
        elif row_locks and routine.statement.file.noun in LOCKERS and "lock_" not in name:
            yield routine.statement, line, f"{name} locks rows: _lock_ or _try_lock_"


def notify(inventory: Inventory) -> Found:
    """notifications is the only file that notifies."""
    for name, statement, tokens in inventory.bodies():
        for token in tokens:
            if (
                token.text in ("pg_notify", "notify")
                and token.kind == "word"
                and statement.file.noun != "notifications"
            ):
                yield statement, token.line, f"{name} notifies"


def journal(inventory: Inventory) -> Found:
    """Only append and insert_run insert into the journal; retention moves rows, removal and
    old_attempts delete them."""
    for name, statement, tokens in inventory.bodies():
        noun = statement.file.noun
        for index, token in enumerate(tokens):
            inserts = at(tokens, index, "insert", "into", SCHEMA, ".", "_journal") and noun not in (
                "append",
                "insert_run",
            )
            updates = at(tokens, index, "update", SCHEMA, ".", "_journal") and noun not in (
                "append",
                "retention",
            )
            deletes = at(tokens, index, "delete", "from", SCHEMA, ".", "_journal") and noun not in (
                "removal",
                "old_attempts",
            )
            if inserts or updates or deletes:
                yield statement, token.line, f"{name}: {token.text} on the journal"


def journal_data(inventory: Inventory) -> Found:
    """The data of a journal row is read by durable._data, which follows its references."""
    for name, statement, tokens in inventory.bodies():
        if statement.file.noun in DATA_READERS:
            continue
        rows = {tokens[i + 3].text for i in range(len(tokens) - 3) if at(tokens, i, SCHEMA, ".", "_journal")}
        for index, token in enumerate(tokens):
            reads = token.text in rows and at(tokens, index + 1, ".", "data")
            if reads and not at(tokens, index + 3, "is"):
                yield statement, token.line, f"{name} reads {token.text}.data; durable._data({token.text})"


def settlement(inventory: Inventory) -> Found:
    """Only settlement assigns a promise's state, once for many promises and once for a single run."""
    places = [
        (name, statement, tokens[index].line)
        for name, statement, tokens in inventory.bodies()
        for index in range(len(tokens))
        if "state" in _assigned(tokens, index, "_promises")
    ]
    due = list(SETTLERS)
    for name, statement, line in places:
        if statement.file.noun == "settlement" and name in due:
            due.remove(name)
        else:
            yield (
                statement,
                line,
                f"{name} takes a promise out of pending; _settle in settlement does that",
            )


def _assigned(tokens: Tokens, index: int, table: str) -> set[str]:
    """Columns that an UPDATE of the table, or the DO UPDATE of an INSERT, sets, if one begins here."""
    update = at(tokens, index, "update", SCHEMA, ".", table)
    insert = at(tokens, index, "insert", "into", SCHEMA, ".", table)
    if not (update or insert):
        return set()
    place = index
    while place < len(tokens) and not (tokens[place].text == "set" and tokens[place].kind == "word"):
        if tokens[place].text == ";":
            return set()
        place += 1
    depth, end = 0, place + 1
    while end < len(tokens) and depth >= 0:
        word = tokens[end].text if tokens[end].kind == "word" else ""
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in ("from", "where", "returning", ";"):
            break
        end += 1
    targets: set[str] = set()
    for part in split(tokens[place + 1 : end]):
        upto = next((i for i, token in enumerate(part) if token.text == "="), 0)
        targets |= {token.text for token in part[:upto]}
    return targets


def raises(inventory: Inventory) -> Found:
    """errors is the only file that raises; few files catch everything, and two pass on the rest."""
    for name, statement, tokens in inventory.bodies():
        for index, token in enumerate(tokens):
            noun = statement.file.noun
            passes_on = at(tokens, index + 1, ";") and noun in ("rpc", "services")
            if token.text == "raise" and token.kind == "word" and noun != "errors" and not passes_on:
                yield statement, token.line, f"{name} raises; errors have names in errors"
            if token.text == "others" and token.kind == "word" and noun not in CATCHERS:
                yield statement, token.line, f"{name} catches everything"


def insert_columns(inventory: Inventory) -> Found:
    """INSERT names its columns: two healthy databases may differ in column order."""
    for name, statement, tokens in inventory.bodies():
        for index in range(len(tokens)):
            if not at(tokens, index, "insert", "into") or of_schema(tokens, index + 2) is None:
                continue
            place = index + 5
            place += 2 if at(tokens, place, "as") else 0
            if not at(tokens, place, "(") or tokens[place + 1].text in ("select", "values"):
                yield statement, tokens[index].line, f"{name}: insert without a list of columns"


def with_the_owners_rights(inventory: Inventory) -> Found:
    """A function with the rights of the schema's owner, and all that it calls, never searches a caller's
    temporary types: variables of PL/pgSQL keep the types that they had when it was first called in a session,
    under whatever path, so they name them with their schema or stand under a path of their own.
    """
    by_name: dict[str, list[Routine]] = {}
    for routine in inventory.routines:
        by_name.setdefault(routine.name, []).append(routine)
    found = [one for one in inventory.routines if "definer" in [token.text for token in one.header]]
    for routine in found:  # grows
        words = [token.text for token in routine.header]
        path = words[words.index("search_path") + 2 :][:3] if routine.pinned else None
        # an entry point gets its path from 99_entry_points
        if path not in (None, ["pg_catalog", ",", "pg_temp"]) or (path is None and routine.public):
            yield routine.breach("run by others than the owner, under another path")
        if path is None:
            for name in _types_at_large(routine):
                yield routine.breach(f"{name} of a type without its schema")
        for index in range(len(routine.body)):
            called = by_name.get(of_schema(routine.body, index) or "", [])
            found += [one for one in called if one not in found]


def _types_at_large(routine: Routine) -> Iterator[str]:
    """Variables of a body in PL/pgSQL whose types are neither keywords of the grammar nor of a schema."""
    words = [token.text for token in routine.body]
    if routine.language == "plpgsql" and words[0] == "declare":
        declared = routine.body[1 : words.index("begin")]
        starts = [0, *(n + 1 for n, token in enumerate(declared) if token.text == ";")]
        for start in starts[:-1]:
            kind = start + (2 if at(declared, start + 1, "constant") else 1)
            if declared[kind].text not in GRAMMAR and declared[kind + 1].text != ".":
                yield declared[start].text


RULES: dict[str, Rule] = {
    check.__name__: check
    for check in (
        calls,
        qualified_tables,
        dynamic_sql,
        clock,
        growth,
        row_locks,
        lock_names,
        notify,
        journal,
        journal_data,
        settlement,
        raises,
        insert_columns,
        with_the_owners_rights,
    )
}
