"""Law: a running worker takes the functions of a notebook as its cells define them last."""

from __future__ import annotations

import asyncio
from typing import Any

from pyengine import App


class Notebook:
    """A namespace in which cells run; each has a file of its own, as in Jupyter."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", **names}
        self.cells = 0

    def run(self, text: str) -> None:
        """Run a cell."""
        self.cells += 1
        exec(compile(text, f"<cell-{self.cells}>", "exec"), self.names)


STEP = """
@app.step
async def greet(name: str) -> str:
    return f"{}, {{name}}"
"""
WORKFLOW = """
@app.workflow
async def hello(name: str) -> str:
    return await greet(name) + "{}"
"""


def test_a_cell_that_is_run_again(dsn: str) -> None:
    """New runs execute the new functions, whichever of them was changed; a run that waits goes on with what
    it began with."""
    app = App(dsn)
    notebook = Notebook(app=app)
    notebook.run(STEP.format("hello"))
    notebook.run(WORKFLOW.format("!"))

    async def said() -> str:
        run = await app.start(notebook.names["hello"], "ann")
        return str(await run.result(timeout=30))

    async def main() -> None:
        async with app.worker():
            assert await said() == "hello, ann!"
            notebook.run(STEP.format("good morning"))
            assert await said() == "good morning, ann!"
            notebook.run(WORKFLOW.format("?"))
            assert await said() == "good morning, ann?"

    asyncio.run(main())


def test_methods_of_an_object(dsn: str) -> None:
    """Steps and workflows that are methods run on the object that they were registered with."""
    app = App(dsn)

    class Shop:
        def __init__(self, city: str) -> None:
            self.city = city
            self.charge = app.step(name="shop.charge")(self._charge)
            self.checkout = app.workflow(name="shop.checkout")(self._checkout)

        async def _charge(self, amount: int) -> str:
            return f"charged {amount} in {self.city}"

        async def _checkout(self, amount: int) -> str:
            return await self.charge(amount)

    assert app.run(Shop("Bern").checkout, 5) == "charged 5 in Bern"
