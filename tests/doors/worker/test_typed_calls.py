"""Law: mypy and pyright find a wrong argument, option or payload at every start and signal, and nothing in a
right one, wherever its result goes. Each program is checked once by each; the lines that are wrong say so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.typed import marked_lines, wrong_lines, wrong_lines_of_pyright

HEAD = """# pyright: reportUnusedImport=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from pyengine import App, BoundWorkflow, Client, Retry, Run, Schedule, Signal, Transaction, ctx
from pyengine.sync import Client as Blocking
from pyengine.sync import SyncRun

app = App()


@dataclass
class Order:
    id: int
    items: list[str]


@dataclass
class Receipt:
    total: int


@app.workflow
async def checkout(order: Order, express: bool = False) -> Receipt:
    return Receipt(0)


@app.workflow
async def report() -> str:
    return ""


@app.workflow(queue="slow")
async def collect(
    names: list[str], limit: int | None = None, *, by: Literal["id", "age"] = "id"
) -> list[int]:
    return []


@app.workflow
async def wide(a: int, b: str, c: float, d: bool, e: bytes, f: int = 0) -> None: ...


@app.workflow
async def many(*names: str) -> int:
    return len(names)


@app.step
async def charge(order: Order) -> Receipt:
    return Receipt(0)


async def plain(order: Order) -> Receipt:
    return Receipt(0)


approve = Signal[bool]("approve")
picked = Signal[list[str]]("picked")
go = Signal[None]("go")
untyped = Signal("untyped")
order = Order(1, [])
"""

RIGHT = (
    HEAD
    + """

async def starts(client: Client, name: str) -> None:
    run = await client.start(checkout, order)
    assert_type(run, Run[Receipt])
    assert_type(await run, Receipt)
    assert_type(await client.start(checkout, order, True), Run[Receipt])
    assert_type(await client.start(checkout, order, express=True), Run[Receipt])
    assert_type(await client.start(checkout, order=order), Run[Receipt])
    assert_type(await client.start(checkout, order, id="o1", timeout="1d", conn=None), Run[Receipt])
    assert_type(await client.start(checkout, order, True, key="k", priority=3), Run[Receipt])
    assert_type(await client.start(checkout.bind(order, express=True), id="o1"), Run[Receipt])
    assert_type(checkout.bind(order), BoundWorkflow[Receipt])
    assert_type(await client.start(report, id="r", delay=5, queue="q", version="2"), Run[str])
    assert_type(await client.start(report), Run[str])
    assert_type(await client.start(collect, []), Run[list[int]])
    assert_type(await client.start(collect, ["a"], 3, id="c"), Run[list[int]])
    assert_type(await client.start(collect, ["a"], None, id="c"), Run[list[int]])
    assert_type(await client.start(collect.bind([], by="age"), id="c"), Run[list[int]])
    await client.start(wide, 1, "b", 1, True, b"", id="w")
    await client.start(wide, 1, "b", 1.5, True, b"", 7)
    await client.start(wide.bind(1, "b", 1.5, True, b"", f=7), id="w")
    assert_type(await client.start(many, "a", "b", "c"), Run[int])
    assert_type(await client.start(many, "a", "b", id="m"), Run[int])
    assert_type(await client.start(name, 1, 2, 3, 4, 5, 6, 7, id="a"), Run[Any])
    assert_type(await client.start("price", n=1), Run[Any])
    assert_type(await client.begin(checkout, (order,), id="o1"), Run[Receipt])
    assert_type(await app.start(checkout, order), Run[Receipt])
    assert_type(await app.start(checkout, order, id="o1"), Run[Receipt])
    assert_type(await app.start(checkout.bind(order), id="o1"), Run[Receipt])


def runs(client: Blocking) -> None:
    assert_type(app.run(checkout, order), Receipt)
    assert_type(app.run(checkout.bind(order, express=True)), Receipt)
    assert_type(client.start(checkout, order), SyncRun[Receipt])
    assert_type(client.start(checkout, order, True, id="o1"), SyncRun[Receipt])
    assert_type(client.start(report, id="r").result(), str)
    assert_type(client.start(collect.bind(["a"], by="id"), key="k"), SyncRun[list[int]])
    client.start(wide, 1, "b", 1, True, b"", id="w")
    assert_type(client.start("price", 1, id="p"), SyncRun[Any])


@app.workflow
async def parent(tx: Transaction) -> None:
    assert_type(await ctx.start(checkout, order), Receipt)
    assert_type(await ctx.start(checkout, order, queue="q", detached=False), Receipt)
    assert_type(await ctx.start(checkout.bind(order, express=True), on_cancel="abandon"), Receipt)
    assert_type(await ctx.start("sql://billing.close", 3, timeout="1m"), Any)
    assert_type(await tx.start(checkout, order, id="o1"), str)
    assert_type(await tx.start(checkout.bind(order), id="o1"), str)
    await tx.signal("a", approve, True)
    await tx.signal("a", "approve", True, dedup="k")
    ctx.continue_as_new(parent.bind(tx))


async def signals(run: Run[int], client: Client, blocking: Blocking, sync: SyncRun[int]) -> None:
    await run.signal(approve, True, dedup="k")
    await run.signal(go)
    await run.signal(go, None)
    await run.signal(picked, ["a"])
    await run.signal("approve", True)
    await run.signal("approve")
    await run.signal(untyped, {"any": "thing"})
    await client.signal("a", approve, False, conn=None)
    await client.signal_many({"a": True}, approve)
    await client.signal_many(["a", "b"], approve, True)
    await client.signal_many(["a", "b"], go)
    await client.signal_many(["a", "b"], "approve", True)
    blocking.signal("a", approve, True)
    blocking.signal("a", go)
    sync.signal(approve, True)
    sync.signal("approve", True)


@app.schedule("@daily", timezone="Europe/Paris", args=(order,), tags={"kind": "report"})
@app.workflow(retry=Retry(max_attempts=2))
async def daily(order: Order) -> int:
    ctx.on_failure(charge, order)
    ctx.on_failure(checkout, order, express=True)
    ctx.on_failure(plain, order)
    ctx.on_failure(ctx.http, "POST", "https://example.com")
    return ctx.attempt


async def lists(client: Client, blocking: Blocking) -> None:
    assert_type(await daily(order), int)
    assert_type(await client.start_many(checkout, [checkout.bind(order)], keys=["k"]), list[Run[Receipt]])
    assert_type(blocking.start_many(report, [()], tags={"a": "b"}), list[SyncRun[str]])
    await client.start_many("price", [(1,), {"n": 2}], ids=["a", None])
    made = await client.schedules.create("s", "@daily", checkout, order, timezone="UTC")
    assert_type(made, Schedule)
    assert_type(blocking.schedules.list(), list[Schedule])
"""
)

WRONG = (
    HEAD
    + """

async def starts(client: Client) -> None:
    await client.start(checkout, 3)  # wrong
    await client.start(checkout)  # wrong
    await client.start(checkout, order, 3)  # wrong
    await client.start(checkout, order, True, 3)  # wrong
    await client.start(checkout, 3, id="o1")  # wrong
    await client.start(checkout, id="o1")  # wrong
    await client.start(checkout, order, 3, id="o1")  # wrong
    await client.start(checkout, order, True, 3, id="o1")  # wrong
    await client.start(checkout, order, speed=3)  # wrong
    await client.start(checkout, order, id=5)  # wrong
    await client.start(checkout, order, ide="o1")  # wrong
    await client.start(checkout, order, timeout=[])  # wrong
    await client.start(checkout.bind(order), id=5)  # wrong
    await client.start(checkout.bind(order), order, id="o1")  # wrong
    checkout.bind(3)  # wrong
    checkout.bind()  # wrong
    checkout.bind(order, express="yes")  # wrong
    await client.start(report, 3)  # wrong
    await client.start(report, 3, id="r")  # wrong
    await client.start(collect, [1])  # wrong
    await client.start(collect, [1], id="c")  # wrong
    await client.start(collect, "names", id="c")  # wrong
    await client.start(wide, 1, 2, 3, True, b"", id="w")  # wrong
    await client.start(wide, 1, "b", 3, True, id="w")  # wrong
    await client.start(many, 1)  # wrong
    await client.start(charge, order)  # wrong
    await client.start(charge, order, id="o1")  # wrong
    await client.start(plain, order)  # wrong
    await client.start(plain, order, id="o1")  # wrong
    await client.start("price", 1, id=5)  # wrong
    await app.start(checkout, 3)  # wrong
    await app.start(checkout, 3, id="o1")  # wrong
    await app.start(checkout, order, id=5)  # wrong
    number: int = await client.start(checkout, order, id="o1")  # wrong
    print(number)


def runs(client: Blocking) -> None:
    app.run(checkout, 3)  # wrong
    app.run(checkout)  # wrong
    app.run(checkout.bind(order), order)  # wrong
    app.run(charge, order)  # wrong
    client.start(checkout, 3)  # wrong
    client.start(checkout, 3, id="o1")  # wrong
    client.start(checkout, id="o1")  # wrong
    client.start(checkout, order, id=5)  # wrong
    client.start(plain, order)  # wrong


@app.workflow
async def parent(tx: Transaction) -> None:
    ctx.start(checkout, 3)  # wrong
    ctx.start(checkout, 3, queue="q")  # wrong
    ctx.start(checkout, order, id="o1")  # wrong
    ctx.start(checkout, order, on_cancel="never")  # wrong
    ctx.start(charge, order)  # wrong
    await tx.start(checkout, 3)  # wrong
    await tx.start(checkout, 3, id="o1")  # wrong
    await tx.start(checkout, order, key="k")  # wrong
    await tx.signal("a", approve, 3)  # wrong
    await tx.signal("a", approve)  # wrong
    if len(app.registry.queues()) > 1:
        ctx.continue_as_new(parent.bind(3))  # wrong


async def signals(run: Run[int], client: Client, blocking: Blocking, sync: SyncRun[int]) -> None:
    await run.signal(approve, "nonsense")  # wrong
    await run.signal(approve)  # wrong
    await run.signal(approve, None)  # wrong
    await run.signal(picked, [1])  # wrong
    await run.signal(go, 3)  # wrong
    await run.signal(approve, True, key="k")  # wrong
    await run.signal(3, True)  # wrong
    await client.signal("a", approve, "nonsense")  # wrong
    await client.signal("a", approve)  # wrong
    await client.signal_many({"a": 3}, approve)  # wrong
    await client.signal_many(["a"], approve, "nonsense")  # wrong
    await client.signal_many(["a"], approve)  # wrong
    blocking.signal("a", approve, "nonsense")  # wrong
    blocking.signal("a", approve)  # wrong
    sync.signal(approve, "nonsense")  # wrong
    sync.signal(approve)  # wrong


async def lists(client: Client) -> None:
    ctx.on_failure(charge, 3)  # wrong
    ctx.on_failure(charge)  # wrong
    ctx.on_failure(checkout, order, 3)  # wrong
    ctx.on_failure(plain, order, express=True)  # wrong
    ctx.on_failure("charge")  # wrong
    await client.start_many(checkout, [checkout.bind(3)])  # wrong
    await client.start_many(checkout, [3])  # wrong
    await client.start_many(checkout, [(order,)], ids=[3])  # wrong
    await client.start_many(plain, [(order,)])  # wrong
    await client.start(report, tags={"a": 3})  # wrong
    app.schedule("@daily")(plain)  # wrong
    app.workflow(retry=3)  # wrong
"""
)

PRINTED = """import asyncio
from typing import assert_type
from pyengine import App, Client, PromiseConflict, Signal, ctx
from pyengine.sync import Client as Blocking

app = App()
approve = Signal[bool]("approve")
later = Signal("later", int)
named = Signal[str]("named")


@app.error
class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@app.step
async def add(a: int, b: int = 0) -> int:
    if a == 7:
        raise Declined(a)
    return a + b


@app.step
def plain(a: int) -> int:
    return a


@app.memo(version="1")
async def heavy(a: int) -> int:
    return a


@app.workflow
async def child(n: int) -> str:
    return str(n)


@app.workflow
async def flow(n: int) -> None:
    print(await ctx.receive(approve))
    print(f"{await ctx.receive(approve)}")
    print(await ctx.receive(later), await ctx.receive("plain", int))
    ctx.log.info("%s", await ctx.receive(approve))
    print(await ctx.first(add(1), ctx.receive(approve)))
    print(await ctx.first(add(1), ctx.receive(named)))
    print(await ctx.first(ctx.receive(named), add(1)))
    which, what = await ctx.first(ctx.receive(named), add(1))
    print(which, what)
    print(await ctx.promise(bool))
    print(await ctx.gather(add(1), child(2), ctx.receive(approve)))
    print(await ctx.map(add, [1, 2]))
    print(await ctx.map(plain, [1, 2], concurrency=2))
    print(await ctx.start(child, 1), await ctx.start(child.bind(1)))
    print(await ctx.call(heavy, 1))
    print(await child(1), await add(1), await plain(1))
    print(await asyncio.gather(add(1), child(2), ctx.receive(approve)))
    async with asyncio.timeout(3):
        print(await ctx.receive(approve, timeout=1))
    for one in ctx.as_completed(add(1), add(2)):
        print(await one)
    async with ctx.transaction() as tx:
        print(await tx.fetchval("select 1"))
        print(await tx.start(child, 1), await tx.start(child.bind(1)))
    try:
        await add(7)
    except Declined as error:
        assert_type(error.code, int)
        print(error.code + 1)
    got = await ctx.receive(approve)
    assert_type(got, bool)
    assert_type(await ctx.receive(later), int)
    print(ctx.now(), ctx.uuid4())
    values: list[int] = await asyncio.gather(*(add(i) for i in range(3)))
    print(values)
    tasks = {asyncio.create_task(add(i)) for i in range(3)}
    done, pending = await asyncio.wait(tasks)
    print(done, pending)
    index, value = await ctx.first(add(1), ctx.receive(approve))
    print(index, value)
    result: int | bool = (await ctx.first(add(1), ctx.receive(approve)))[1]
    print(result)


async def main(client: Client) -> None:
    print(await (await client.start(child, 1)).result())
    print(await client.start(child, 1))
    print(await app.start(child, 1), app.run(child, 1), app.run(child.bind(1)))
    run = await client.start(child, 1)
    print(await run, await run.get("x"))
    print(f"{app.run(child, 1)}")
    try:
        await client.promises.resolve("a", 1)
    except PromiseConflict as conflict:
        print(conflict.promise.state)


def blocking(client: Blocking) -> None:
    print(client.start(child, 1).result())
    print(client.start(child.bind(1)).result())
    raise Declined("x")  # wrong
"""

PROGRAMS = {"right": RIGHT, "wrong": WRONG, "printed": PRINTED}
CHECKERS: dict[str, Callable[..., dict[str, list[int]]]] = {
    "mypy": wrong_lines,
    "pyright": wrong_lines_of_pyright,
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_wrong_call_is_found(checker: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The checker reports exactly the lines that are wrong: none of the right ones, and all of the others."""
    found = CHECKERS[checker](tmp_path_factory.mktemp(checker), PROGRAMS)
    assert {name: sorted(set(lines)) for name, lines in found.items()} == marked_lines(PROGRAMS)
