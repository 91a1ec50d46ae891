"""The client that blocks: derived from the one that awaits, and alike in what it answers."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, sync
from pyengine.clients import ClientApi
from pyengine.core.client.run import Run
from pyengine.errors import EngineError, InvalidRequest, NotFound, RunFailed, SchemaMismatch, Unavailable
from pyengine.features.promises.client import Promises
from tests.support.callers import Awaited
from tests.support.typed import wrong_lines
from tests.system.crash.processes import until

Connection = psycopg.Connection[tuple[Any, ...]]

TWINS: list[tuple[type, type]] = [(ClientApi, sync.Client), (Run, sync.SyncRun), (Promises, sync.Promises)]


def shop(dsn: str) -> App:
    """Two workflows."""
    app = App(dsn)

    @app.workflow
    async def price(n: int) -> Decimal:
        return Decimal(n) / 4

    @app.workflow
    async def fail() -> None:
        raise LookupError("nothing")

    return app


@contextmanager
def serving(app: App) -> Iterator[None]:
    """A worker in a thread of its own."""
    ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        async with app.worker():
            ready.set()
            await asyncio.to_thread(stop.wait)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, main())
        ready.wait(30)
        try:
            yield
        finally:
            stop.set()
            done.result(30)


def verbs(cls: type) -> dict[str, Callable[..., Any]]:
    """Public methods by name."""
    return {name: value for name, value in inspect.getmembers(cls, inspect.isfunction) if name[0] != "_"}


def missing(awaiting: type, blocks: type) -> list[str]:
    """What one class can do and the other cannot, or in another way."""
    found = []
    for name, verb in verbs(awaiting).items():
        derived = verbs(blocks).get(name)
        if derived is None:
            found.append(f"{name} is missing")
        elif inspect.iscoroutinefunction(derived) or getattr(derived, "__wrapped__", None) is not verb:
            found.append(f"{name} is not derived")
        elif inspect.signature(derived) != inspect.signature(verb) or derived.__doc__ != verb.__doc__:
            found.append(f"{name} has another signature")
    return [*found, *(f"{name} is of its own" for name in verbs(blocks) if name not in verbs(awaiting))]


@pytest.mark.parametrize(("awaiting", "blocks"), TWINS)
def test_every_verb_has_its_derivative(awaiting: type, blocks: type) -> None:
    """Each public verb that awaits is derived under the same name, with signature and documentation, and the
    client that blocks has none of its own.
    """
    assert missing(awaiting, blocks) == []
    assert len(verbs(blocks)) >= 8


def test_the_client_that_awaits_has_no_verb_of_its_own() -> None:
    """All verbs stand in the class from which they are derived."""
    assert verbs(Client) == verbs(ClientApi)


def test_the_check_of_derivatives_reports() -> None:
    """A verb that is new, one that was written by hand and one too many are found."""

    class More(ClientApi):
        async def count(self) -> int:
            return 1

    class Less(sync.Client):
        def get(self, id: str) -> Any:
            return id

        def extra(self) -> None: ...

    assert missing(More, sync.Client) == ["count is missing"]
    assert missing(ClientApi, Less) == ["get is not derived", "extra is of its own"]


def test_a_verb_that_waits_for_something_else_is_found() -> None:
    """A coroutine that would need an event loop is refused, not left hanging."""

    class Slow(ClientApi):
        async def get(self, id: str) -> Any:
            await asyncio.sleep(0)

    class Client(sync.Client):
        get = sync._of_client(Slow.get)  # type: ignore[assignment, arg-type]

    with pytest.raises(EngineError, match="something else than its transport"):
        Client("postgresql://127.0.0.1:1/shop").get("a")


TYPED = """
from typing import Any, assert_type

from pyengine import App, Client, Run, Signal
from pyengine.features.promises.records import PromiseRecord
from pyengine.core.client.run_status import RunStatus
from pyengine.sync import Client as Blocking
from pyengine.sync import SyncRun

app = App()
approve = Signal[int]("approve")


@app.workflow
async def price(n: int) -> list[str]:
    return [str(n)]


def blocks(client: Blocking) -> None:
    run = client.start(price, 1, id="a", timeout="1m", conn=None)
    assert_type(run, SyncRun[list[str]])
    assert_type(run.result(timeout=3), list[str])
    assert_type(run.get(), RunStatus)
    assert_type(run.fork(seq=1), SyncRun[list[str]])
    assert_type(client.start("price", 1), SyncRun[Any])
    assert_type(client.run("a", price), SyncRun[list[str]])
    assert_type(client.run("a"), SyncRun[Any])
    assert_type(client.list(state="queued"), list[RunStatus])
    assert_type(client.signal("a", approve, 3), int)
    assert_type(client.promises.resolve("p", 1), PromiseRecord)
    run.result(time=3)
    client.cancel(3)
    client.promises.create()


async def awaits(client: Client) -> None:
    assert_type(await client.start(price, 1), Run[list[str]])
    assert_type(await client.start("price", 1), Run[Any])
    assert_type(client.run("a"), Run[Any])
"""


def test_types_are_kept(tmp_path: Path) -> None:
    """mypy sees parameters and results of the derived verbs: what is right passes, and what is wrong is
    reported, line by line.
    """
    wrong = [
        number
        for number, line in enumerate(TYPED.splitlines(), 1)
        if any(call in line for call in ("result(time=3)", "cancel(3)", "create()"))
    ]
    assert wrong_lines(tmp_path, {"sample": TYPED}) == {"sample": wrong}


def plain(value: Any, own: str) -> Any:
    """An answer without what differs from run to run: instants, journals' ids, and the runs' own prefix."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain({"type": type(value).__name__} | asdict(value), own)
    if isinstance(value, EngineError):
        return plain([type(value).__name__, str(value)], own)
    if isinstance(value, dict):
        return {plain(key, own): plain(each, own) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, own) for each in value]
    if isinstance(value, datetime):
        return str(value.tzinfo)
    if isinstance(value, Run | Awaited):
        return plain([value.id, value.created], own)
    if isinstance(value, BaseException):
        return repr(value)
    return value.replace(own, "") if isinstance(value, str) else value


def about_runs(client: Any, run: Any, own: str) -> tuple[Any, ...]:
    """Every use of a client and of a handle."""
    return (
        client.start("price", 1, id=f"{own}a"),
        client.start("price", 2, id=f"{own}a"),
        client.start("price", 2, n=2),
        client.start("price", id=5),
        client.begin("price", (1,), queue=""),
        client.begin("price", (1,), id=f"{own}b", priority=1 << 40),
        client.begin("price", (1,), id=f"{own}b", priority=1 << 20),
        client.begin(5),
        run.signal("ping", {"n": 1}),
        run.signal("ping", float("nan")),
        client.signal(f"{own}x", "ping"),
        run.pause(),
        run.get(),
        run.resume(),
        run.resume(),
        run.redrive(),
        client.redrive(),
        run.fork(id=f"{own}c", seq=1),
        run.fork(id=f"{own}c"),
        run.fork(step="nothing"),
        run.as_of(seq=1),
        run.as_of(seq=100),
        run.as_of(at=datetime(2020, 1, 1)),
        run.cancel({"why": 1}, grace="1s"),
        run.cancel(),
        run.result(timeout=5),
        run.result(timeout="never"),
        client.get(f"{own}a"),
        client.get(f"{own}x"),
        client.get("a\0b"),
        client.list(state="nope"),
        client.run(f"{own}x").result(timeout=5) if isinstance(client, Client) else client.get(f"{own}x"),
    )


def about_promises(promises: Any, own: str) -> tuple[Any, ...]:
    """Every use of promises by themselves."""
    return (
        promises.create(f"{own}p", {"n": 1}, timeout="1h", idempotency_key="k", tags={"own": own}),
        promises.create(f"{own}p", {"n": 1}),
        promises.create(f"{own}q", timeout=datetime(2020, 1, 1)),
        promises.resolve(f"{own}p", [1], idempotency_key="k"),
        promises.resolve(f"{own}p", [2], idempotency_key="k"),
        promises.reject(f"{own}p", ValueError("no")),
        promises.cancel(f"{own}x"),
        promises.callback("cb", f"{own}p", f"{own}x", "poll://any@peers"),
        promises.subscribe(f"{own}p", {"type": "what"}),
        promises.get(f"{own}p"),
        promises.search(f"{own}*", limit=5),
        promises.search(f"{own}*", tags={"own": own}),
        promises.search(limit=5000),
        promises.search(state="SLEEPING"),
    )


async def use_everything(client: Any, own: str) -> list[Any]:
    """All answers and errors of a client that was put to every use, on runs and promises of its own."""
    told: list[Any] = []

    async def tell(question: Any) -> Any:
        try:
            told.append(await question)
        except Exception as error:
            told.append(error)
        return told[-1]

    run = await tell(client.start("price", 1, id=f"{own}a", timeout="1h", priority=3))
    for question in (*about_runs(client, run, own), *about_promises(client.promises, own)):
        await tell(question)
    return told


def test_answers_and_errors_are_alike(dsn: str, conn: Connection) -> None:
    """Put to the same uses on one database, both clients give the same answers and raise the same errors with
    the same words, whatever the time zone of sessions is.
    """
    conn.execute(f"alter database \"{conn.info.dbname}\" set timezone to 'Asia/Tokyo'")  # type: ignore[arg-type]

    async def main() -> None:
        async with Client(dsn) as client:
            expected = plain(await use_everything(client, "one-"), "one-")
        with sync.Client(dsn) as blocks:
            got = plain(await use_everything(Awaited(blocks), "two-"), "two-")
        assert got == expected
        kinds = {each[0] for each in got if isinstance(each, list) and each and isinstance(each[0], str)}
        assert {
            "InvalidRequest",
            "NotFound",
            "Conflict",
            "RunConflict",
            "RunCancelled",
            "EncodeError",
        } <= kinds

    asyncio.run(main())


def test_results_are_of_their_type_and_errors_too(dsn: str) -> None:
    """A run gives the value that its workflow's type says, and fails with the error of its code."""
    app = shop(dsn)
    with serving(app), sync.Client(dsn, registry=app.registry) as client:
        assert client.start("price", 3).result(timeout=30) == Decimal("0.75")
        with pytest.raises(RunFailed, match="nothing") as caught:
            client.start("fail").result(timeout=30)
        assert isinstance(caught.value.__cause__, LookupError)
        with pytest.raises(NotFound):
            client.run("nobody").result(timeout=30)
    with sync.Client(dsn) as client:
        found = [one.state for one in client.list(workflow="price")]
        assert found == ["completed"]


def test_waiting_has_an_end_and_the_run_goes_on(dsn: str) -> None:
    """result(timeout=) raises TimeoutError, and a later wait gets the result."""
    app = shop(dsn)
    with sync.Client(dsn, registry=app.registry) as client:
        run = client.start("price", 1)
        with pytest.raises(TimeoutError, match="it goes on"):
            run.result(timeout=0.05)
        with serving(app):
            assert run.result(timeout=30) == Decimal("0.25")


def test_threads_share_a_client(dsn: str) -> None:
    """Many threads start and wait with one client, over no more connections than it was given."""
    app = shop(dsn)
    with serving(app), sync.Client(dsn, registry=app.registry, connections=3) as client:
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda n: client.start("price", 4 * n).result(timeout=60), range(60)))
        assert found == [Decimal(n) for n in range(60)]
        assert 1 <= len(client._inner._transport._all) <= 3  # type: ignore[attr-defined]


@pytest.mark.session("a session is ended under its owner")
def test_a_lost_connection_is_replaced(dsn: str, conn: Connection) -> None:
    """A verb whose connection was cut meanwhile is sent again on another one."""
    cut = (
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    with sync.Client(dsn) as client:
        run = client.start("price", 1, id="a")
        conn.execute(cut)
        assert run.get().id == "a"
        conn.execute(cut)
        assert run.signal("ping") == 1


@pytest.mark.session("sessions are told apart by their server process")
def test_a_forked_process_makes_its_own_connections(dsn: str) -> None:
    """A client that was used before a fork works on both sides: neither touches the connection of the other,
    even if a thread held its locks.
    """
    with sync.Client(dsn) as client:
        client.start("price", 1, id="before")
        transport: Any = client._inner._transport
        (own,) = transport._all
        transport._opening.acquire()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert client.get("before").id == "before"
                client.start("price", 1, id="child")
                assert own not in transport._all
                client.close()
                code = 0
            finally:
                os._exit(code)
        transport._opening.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get("child").id == "child"
        assert transport._all == [own]


def test_it_works_inside_an_event_loop(dsn: str) -> None:
    """Where a loop runs the verbs do what they do, and keep it from all else meanwhile."""

    async def main() -> None:
        with sync.Client(dsn) as client:
            assert client.start("price", 1, id="a").get().state == "queued"

    asyncio.run(main())


def test_steps_may_use_it_and_workflows_may_not(dsn: str) -> None:
    """A plain step starts a run with a client that blocks; workflow code, which would do it again at every
    replay, is refused, with a client that is awaited too.
    """
    app = shop(dsn)

    @app.step
    def order(id: str) -> str:
        return client.start("price", 1, id=id).id

    @app.workflow
    async def lawful(id: str) -> str:
        return await order(id)

    @app.workflow
    async def unlawful(id: str) -> str:
        return client.start("price", 1, id=id).id

    @app.workflow
    async def unlawful_too(id: str) -> str:
        return (await Client(dsn).start("price", 1, id=id)).id

    with serving(app), sync.Client(dsn, registry=app.registry) as client:
        assert client.start(lawful, "good").result(timeout=30) == "good"
        for workflow in (unlawful, unlawful_too):
            with pytest.raises(RunFailed, match=r"workflow code may not call client\.start"):
                client.start(workflow, "bad").result(timeout=30)
        assert client.get("good").workflow == "price"
        with pytest.raises(NotFound):
            client.get("bad")


@pytest.mark.session("sessions are counted")
def test_a_closed_client_refuses_verbs(dsn: str, conn: Connection) -> None:
    """After close, which may be called again, its connections are gone and its verbs are refused; one that
    was forgotten closes them too.
    """
    sessions = (
        "select count(*) = {} from pg_stat_activity where datname = current_database() "
        "and application_name = 'pyengine client'"
    )
    client = sync.Client(dsn)
    client.start("price", 1, id="a")
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.get("a")
    forgotten = sync.Client(dsn)
    forgotten.get("a")
    connections: list[Any] = forgotten._inner._transport._all  # type: ignore[attr-defined]
    assert len(connections) == 1
    del forgotten
    assert connections == []
    until(dsn, sessions.format(0))


@pytest.mark.parametrize("kind", [Client, sync.Client])
def test_no_database_is_unavailable_and_names_no_password(kind: Any) -> None:
    """A server that is not there is Unavailable, with host and database and without the password."""
    error = opened("postgresql://me:geheim@127.0.0.1:1/shop", kind, Unavailable)
    assert "'shop' on 127.0.0.1:1" in error.message
    assert "geheim" not in repr(error) + str(error)


@pytest.mark.parametrize("kind", [Client, sync.Client])
@pytest.mark.parametrize("address", ["geheim@host:notaport", "ge/heim@host", "ge#heim@host", "ge?heim@host"])
def test_a_url_that_cannot_be_read_is_not_repeated(address: str, kind: Any) -> None:
    """A broken URL is an InvalidRequest that shows neither the password nor a part of it."""
    error = opened(f"postgresql://me:{address}/shop", kind, InvalidRequest)
    assert "me:" not in str(error)
    assert "heim" not in str(error)


@pytest.mark.parametrize("kind", [Client, sync.Client])
@pytest.mark.session("the pooler answers for a database that does not exist")
def test_a_database_that_refuses(kind: Any, dsn: str, empty_database: Callable[[], str]) -> None:
    """A database that does not exist is refused and not waited for; one without the schema says what to type;
    what is no URL is none.
    """
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    error = opened(dsn.replace(f"/{name}?", "/nowhere?"), kind, EngineError)
    assert type(error) is EngineError
    assert "refuses the connection" in error.message
    error = opened(empty_database(), kind, SchemaMismatch)
    assert "pyengine db init" in (error.hint or "")
    opened("shop", kind, InvalidRequest)


def opened(dsn: str, kind: Any, expected: type[EngineError]) -> EngineError:
    """What is raised when a client is opened and asked."""

    async def main() -> None:
        client = kind(dsn) if kind is Client else Awaited(kind(dsn))
        try:
            await client.get("a")
        finally:
            await client.close()

    with pytest.raises(expected) as caught:
        asyncio.run(main())
    return caught.value


def test_an_incompatible_schema_is_refused(dsn: str, conn: Connection) -> None:
    """A database that serves other worker protocols is a SchemaMismatch, older or newer."""
    for lowest, highest, word in ((0, 0, "older"), (2, 3, "newer")):
        conn.execute(
            "create or replace function durable.version() returns table (schema_version integer, "
            "lowest_worker_protocol integer, highest_worker_protocol integer) language sql stable as "
            f"$$ select 1, {lowest}, {highest} $$"  # type: ignore[arg-type]
        )
        with pytest.raises(SchemaMismatch, match=word):
            sync.Client(dsn).open()


def test_another_form_of_the_same_call_finds_the_run(dsn: str) -> None:
    """A blocking start reads what was recorded, too."""
    app = App(dsn)

    @app.workflow
    async def double(n: int, plus: int = 0) -> int:
        return 2 * n + plus

    with sync.Client(dsn) as client:
        client.start("double", n=1, plus=0, id="a")
        assert not client.start(double, 1, id="a").created
