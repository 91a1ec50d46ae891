"""The storage shapes under comparison: each differs from the base in the flags named, and in nothing else.

`render` turns a .sql file of this folder into the SQL of one variant. It knows two things only: lines between
`--if flag...` and `--end` stand or fall with the flags (`!flag` negates), and `{name}` is replaced from the
table that `words` makes.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BASE = frozenset({"key_mixed", "generic"})
LETTERS = {
    "pending": "p",
    "acquired": "a",
    "fulfilled": "f",
    "resolved": "r",
    "running": "r",
    "completed": "c",
}

# name -> (number of the question, flags added to the base, flags removed from it)
VARIANTS: dict[str, tuple[int, str, str]] = {
    "base": (0, "", ""),
    "base_again": (0, "", ""),
    "promise_row": (1, "promise_row", ""),
    "task_kept": (2, "task_kept", ""),
    "ready_table": (3, "ready_table", ""),
    "json_both": (4, "json_in json_out", ""),
    "json_out": (4, "json_out", ""),
    "columns_out": (4, "columns", ""),
    "setof_out": (4, "setof", ""),
    "arrays_in": (4, "arrays", ""),
    "arrays_in_columns_out": (4, "arrays columns json_out", ""),
    "plan_auto": (5, "", "generic"),
    "sql_ctes": (5, "sql", ""),
    "sql_ctes_auto": (5, "sql", "generic"),
    "journal_plain": (6, "plain", ""),
    "key_text": (7, "key_text", "key_mixed"),
    "key_bigint": (7, "key_bigint", "key_mixed"),
    "state_text": (8, "text", ""),
    "packed": (9, "packed", ""),
    "heads_fill_90": (9, "heads_90", ""),
    "heads_fill_45": (9, "heads_45", ""),
    "promises_fill_50": (9, "promises_50", ""),
    "renew_each_turn": (9, "renew", ""),
    "heads_once": (9, "key_bigint once", "key_mixed"),
    "lease_in_head": (9, "key_bigint once lease_in_head", "key_mixed"),
    "best": (8, "key_bigint packed json_out", "key_mixed"),
    "best_text": (8, "key_bigint packed json_out text", "key_mixed"),
    "leanest": (8, "key_bigint once lease_in_head packed json_out columns", "key_mixed"),
}


def flags_of(name: str) -> frozenset[str]:
    """Return the flags of a variant."""
    _, added, removed = VARIANTS[name]
    return (BASE | set(added.split())) - set(removed.split())


def words(schema: str, flags: frozenset[str]) -> dict[str, str]:
    """Return the replacement of each {name} of the .sql files in this variant."""
    found = {name: f"'{name if 'text' in flags else letter}'" for name, letter in LETTERS.items()}
    on_bigint = "key_bigint" in flags
    return found | {
        "s": schema,
        "state": "text" if "text" in flags else '"char"',
        "key": "bigint" if on_bigint else "text",
        "field": "execution" if on_bigint else "id",
        "task_key": "execution" if on_bigint else "id",
        "claimed": (
            "t.id = any (array(select id from c))"
            if "ready_table" in flags
            else "t.ctid = any (array(select place from c))"
        ),
        "head_unique": "unique" if "key_text" in flags else "",
        "task_execution": "null::bigint" if "key_text" in flags else "h.execution",
        "head_of_task": "h.id = u.id" if "key_text" in flags else "h.execution = u.execution",
        "heads_fill": "90" if "heads_90" in flags else "45" if "heads_45" in flags else "60",
        "promises_fill": "50" if "promises_50" in flags else "90",
        "journal_key": (
            "execution, seq"
            if "plain" in flags
            else "execution, seq, bucket"
            if "packed" in flags
            else "bucket, execution, seq"
        ),
        "partitioned": "" if "plain" in flags else "partition by list (bucket)",
        "bucket_is_known": "" if "plain" in flags else "j.bucket = p_bucket and",
        "plan": "set plan_cache_mode = force_generic_plan" if "generic" in flags else "",
        "json_in": "json" if "json_in" in flags else "jsonb",
        "json_out": "json" if "json_out" in flags else "jsonb",
        "returns": (
            "table (execution bigint, verdict text, seq int, next int, task jsonb)"
            if "setof" in flags
            else "json"
            if "json_out" in flags
            else "jsonb"
        ),
        "journal_value": "null" if "promise_row" in flags else "f.value",
        "keep_version": "" if "task_kept" in flags else ", task_version = e.version",
        "keep_version_a": "" if "task_kept" in flags else ", task_version = a.version",
        "renew_when": "true" if "renew" in flags else "t.expires_at < v_now + p_ttl_ms / 2",
    }


def render(file: str, schema: str, flags: frozenset[str]) -> str:
    """Return the SQL of `file` for one variant."""
    kept: list[str] = []
    keep = True
    for line in (HERE / file).read_text().splitlines():
        if line.startswith("--if "):
            keep = all((f[1:] not in flags) if f.startswith("!") else f in flags for f in line.split()[1:])
        elif line == "--end":
            keep = True
        elif keep:
            kept.append(line)
    text = "\n".join(kept)
    for name, value in words(schema, flags).items():
        text = text.replace("{" + name + "}", value)
    return text


def sql_of(name: str, schema: str, extra: str = "") -> str:
    """Return the whole SQL of a variant (tables, start, turn) in `schema`, with `extra` flags on top."""
    flags = flags_of(name) | set(extra.split())
    turn = "turn_ctes.sql" if "sql" in flags else "turn_once.sql" if "once" in flags else "turn.sql"
    return render("tables.sql", schema, flags) + "\n" + render(turn, schema, flags)
