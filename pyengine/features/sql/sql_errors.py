"""Errors that database functions raise.

Lives here: `SqlError`, and the classes that users derive from it, by SQLSTATE. May not: asyncpg, the caller
of the function. The theory: an error keeps its SQLSTATE, in the journal too, so Python and SQL
branch on the same five characters. A class that names a SQLSTATE stands for the errors that have it.
"""

from __future__ import annotations

from typing import ClassVar


class SqlError(Exception):
    """A database function raised an error.

    Args:
        message: its primary message.
        sqlstate: five characters, e.g. "23505", or those of `raise ... using errcode = 'BK001'`.
        detail: its DETAIL, if any.
        hint: its HINT, if any.
        constraint: the constraint that was violated, if it is one.
        table: the table of that constraint.
        retryable: false if the call itself is wrong, so that another attempt would fail the same way.

    A class of your own gets the errors of one SQLSTATE: `class NoFunds(SqlError, sqlstate="BK001"): ...`
    """

    _classes: ClassVar[dict[str, type[SqlError]]] = {}

    def __init__(
        self,
        message: str = "",
        *,
        sqlstate: str = "",
        detail: str | None = None,
        hint: str | None = None,
        constraint: str | None = None,
        table: str | None = None,
        retryable: bool = True,
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        self.constraint = constraint
        self.table = table
        self.retryable = retryable

    def __init_subclass__(cls, *, sqlstate: str | None = None) -> None:
        super().__init_subclass__()
        if sqlstate is not None:
            SqlError._classes[sqlstate] = cls

    def __str__(self) -> str:
        lines = [f"{self.args[0] if self.args else ''} (SQLSTATE {self.sqlstate})"]
        if self.detail:
            lines.append(f"detail: {self.detail}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def sql_error(
    message: str,
    *,
    sqlstate: str,
    detail: str | None,
    hint: str | None,
    constraint: str | None,
    table: str | None,
) -> SqlError:
    """Return (not raise) the error of a SQLSTATE, of the class for it; arguments as for `SqlError`."""
    error = SqlError(
        message,
        sqlstate=sqlstate,
        detail=detail,
        hint=hint,
        constraint=constraint,
        table=table,
        # the schema's function _is_final has the same list
        retryable=sqlstate[:2] not in ("0A", "42", "WF"),
    )
    cls = SqlError._classes.get(sqlstate)
    if cls is not None:
        # without its __init__, which may have any signature
        error.__class__ = cls
    return error
