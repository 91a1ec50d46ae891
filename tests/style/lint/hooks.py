"""House rules about hooks: functions that the core defines with an empty body and a feature's file replaces.

Lives here: what a second definition of a function must keep. May not: know which file is of the core
(``test_parts`` does), look at ``sql/debug``, which replaces what it likes. Design: PostgreSQL takes a second
definition for a new body of the first, so a name that is taken twice by mistake would win without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from tests.style.lint.inventory import Found, Inventory, Routine, Rule, closing, of_schema, split

__all__ = ["HOOKS", "RULES", "hooks_in"]

# the noun of the file of the hooks
HOOKS = "hooks"
# bodies that do nothing: of a function without a result, of an array, of all others
EMPTY = frozenset({"", "begin end", "begin return {} ; end", "begin return null ; end"})


def hooks_in(inventory: Inventory) -> Iterator[tuple[Routine, list[Routine]]]:
    """Yield each hook with the definitions that replace it."""
    named = _by_name_and_types(inventory)
    for routines in named.values():
        first, *others = routines
        if first.statement.file.noun == HOOKS:
            yield first, others


def hooks(inventory: Inventory) -> Found:
    """A function is defined once; a hook is empty, and is defined once more under the same header."""
    for first, *others in _by_name_and_types(inventory).values():
        is_hook = first.statement.file.noun == HOOKS
        if is_hook and " ".join(token.text for token in first.body) not in EMPTY:
            yield first.breach("a hook does nothing by itself")
        for count, other in enumerate(others):
            if not is_hook:
                yield other.breach(f"defined in {first.statement.file.name} already")
            elif count:
                yield other.breach(f"this hook is replaced in {others[0].statement.file.name} already")
            elif _header(other) != _header(first):
                yield other.breach(f"another header than the hook in {first.statement.file.name}")


def asked_in_plpgsql(inventory: Inventory) -> Found:
    """An upgrade creates a hook where its feature stands, which is after SQL functions and views of the core:
    those are checked when they are created."""
    asked = {hook.name for hook, _ in hooks_in(inventory)}
    languages = {routine.name: routine.language for routine in inventory.routines}
    for name, statement, tokens in inventory.bodies():
        for index in range(len(tokens)):
            if of_schema(tokens, index) in asked and languages.get(name) != "plpgsql":
                yield statement, tokens[index].line, f"{name} asks a hook, and is not in PL/pgSQL"


def _by_name_and_types(inventory: Inventory) -> dict[tuple[str, ...], list[Routine]]:
    """Functions of sql/logic; the types of their parameters tell overloads apart."""
    named: dict[tuple[str, ...], list[Routine]] = {}
    for routine in inventory.routines:
        if routine.statement.file.room == "logic":
            named.setdefault((routine.name, *_types(routine)), []).append(routine)
    return named


def _types(routine: Routine) -> Iterator[str]:
    tokens = routine.statement.tokens
    opening = next(index for index, token in enumerate(tokens) if token.text == "(")
    for part in split(tokens[opening + 1 : closing(tokens, opening)]):
        words = [token.text for token in part if token.text not in ("in", "inout", "variadic")]
        if words[0] != "out":
            yield " ".join(takewhile(lambda word: word not in ("default", "="), words[1:]))


def _header(routine: Routine) -> list[str]:
    """What stands before the body: names and types, result, language, volatility, rights."""
    return [token.text for token in takewhile(lambda token: token.kind != "body", routine.statement.tokens)]


RULES: dict[str, Rule] = {check.__name__: check for check in (hooks, asked_in_plpgsql)}
