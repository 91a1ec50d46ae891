"""Typical mistakes of newcomers at registrations, rows 23 and 25 of the list, and the sentences that answer
them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyengine import App
from pyengine.errors import InvalidRequest
from tests.core.replay.memory_run import step


class Shop:
    """A class with a method that somebody takes for a step."""

    async def charge(self, a: int) -> int:
        """A method."""
        return a


def test_row_23_a_method_as_a_step() -> None:
    """In the body of a class there is no object to call it on; a method of an object needs a name, and works
    then."""
    registry = App().registry
    for given, says in (
        (Shop.charge, "step Shop.charge is a method, and here is no object to call it on"),
        (Shop().charge, "step Shop.charge is a method; its name in the journal must be given"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            registry.add_step(step(given))
        assert caught.value.message == says
        assert 'app.step(name="shop.charge")(object.charge)' in (caught.value.hint or "")
    app = App()
    charge = app.step(name="shop.charge")(Shop().charge)
    assert asyncio.run(charge(3)) == 3


def test_row_25_the_same_step_twice() -> None:
    """In a script it is a mistake; in a notebook the cell was run again, and its function counts."""
    app = App()
    cells = [
        "@app.step\nasync def g() -> int: return 1",
        "# changed\n@app.step\nasync def g() -> int: return 2",
    ]
    names: dict[str, Any] = {"app": app, "__name__": "shop"}
    exec(compile(cells[0], "shop.py", "exec"), names)
    with pytest.raises(InvalidRequest, match=r"step 'g' is registered twice: shop\.g and shop\.g") as caught:
        exec(compile(cells[1], "shop.py", "exec"), names)
    assert caught.value.hint == "give one of them another name="
    names = {"app": App(), "__name__": "__main__"}
    for n, cell in enumerate(cells):
        exec(compile(cell, f"<cell-{n}>", "exec"), names)
    assert asyncio.run(names["g"]()) == 2
    assert asyncio.run(names["app"].registry.step("g").fn()) == 2


def test_row_32_a_schedule_that_no_run_can_follow() -> None:
    """A wrong time zone and a missing argument are told at the declaration, with the schedule."""
    app = App("postgresql://localhost/unused")

    @app.workflow
    async def report(day: str, scheduled_at: str) -> None: ...

    with pytest.raises(InvalidRequest, match="schedule report: there is no time zone 'Europe/Berln'"):
        app.schedule("0 3 * * *", timezone="Europe/Berln", args=("x",))(report)
    with pytest.raises(InvalidRequest, match=r"schedule nightly: workflow report: missing .*argument: 'day'"):
        app.schedule("0 3 * * *", id="nightly")(report)
    app.schedule("0 3 * * *", timezone="Europe/Berlin", args=("x",))(report)
