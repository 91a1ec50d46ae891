"""Whatever an error or a result does when it is looked at: its attempt ends with an outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pyengine import App, RemoteError, Retry
from pyengine.core.worker import failures

Connection = psycopg.Connection[tuple[object, ...]]
TWICE = Retry(max_attempts=2, initial="1ms", jitter=0)


def raises(*names: str, error: type[BaseException] = RuntimeError) -> type[Exception]:
    """Return a class of errors that have such properties."""

    def look(self: object) -> Any:
        raise error("no")

    return type(f"Hostile{'_'.join(names)}", (Exception,), {name: property(look) for name in names})


class Proxy(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Everything(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class Text(Exception):
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


class Recursive(Exception):
    def __str__(self) -> str:
        return str(self)


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__module__", "__name__", "__mro__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Unnamed(Exception, metaclass=Nameless):
    pass


class Notes(Exception):
    __notes__ = 7


class Undecided:
    def __bool__(self) -> bool:
        raise RuntimeError

    __eq__ = __repr__ = __bool__  # type: ignore[assignment]


class Undecidable(Exception):
    retryable = retry_after = Undecided()


def of(inner: Exception) -> Exception:
    error = ValueError("outer")
    error.__cause__ = inner
    return error


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "retryable": raises("retryable"),
    "retry_after": raises("retry_after"),
    "dict": raises("__dict__"),
    "args": raises("args"),
    "class": raises("__class__"),
    "cause": raises("__cause__", "__context__", "__suppress_context__"),
    "trace": raises("__traceback__"),
    "notes": raises("__notes__", error=SystemExit),
    "fields": raises("__dataclass_fields__"),
    "getattr": Proxy,
    "getattribute": Everything,
    "text": Text,
    "recursive": Recursive,
    "metaclass": Unnamed,
    "odd notes": Notes,
    "undecidable": Undecidable,
    "in a cause": lambda: of(Proxy()),
    "in a group": lambda: ExceptionGroup("group", [Proxy(), Text()]),
    "as an argument": lambda: ValueError(Undecided(), Proxy()),
}


def test_every_attempt_has_an_outcome(dsn: str, conn: Connection) -> None:
    """In the loop, in a thread and in a workflow: two rows for two attempts, an error for the run; the worker
    that did it all is still there.
    """
    app = App(dsn)

    @app.step(retry=TWICE)
    async def in_loop(name: str) -> None:
        raise HOSTILE[name]()

    @app.step(retry=TWICE)
    def in_thread(name: str) -> None:
        raise HOSTILE[name]()

    @app.workflow
    async def fails(name: str) -> None:
        raise HOSTILE[name]()

    @app.workflow
    async def every() -> dict[str, int]:
        caught = dict.fromkeys(HOSTILE, 0)
        for name in HOSTILE:
            for call in (in_loop, in_thread, fails):
                try:
                    await call(name)
                except Exception:
                    caught[name] += 1
        return caught

    assert app.run(every) == dict.fromkeys(HOSTILE, 3)
    rows = conn.execute(
        "select count(*) filter (where type = 'first_attempt_failed'),"
        " count(*) filter (where type = 'last_attempt_failed') from durable._journal"
    ).fetchone()
    assert rows == (2 * len(HOSTILE), 2 * len(HOSTILE))


@pytest.mark.parametrize("is_async", [True, False])
def test_a_look_that_does_not_end(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    """An error at which a look hangs is recorded without one, and its policy judges it by its class."""
    monkeypatch.setattr(failures, "LOOK_S", 0.01)
    go_on = threading.Event()

    class Hanging(Exception):
        def __str__(self) -> str:
            go_on.wait()
            return "late"

    app = App(dsn)

    async def in_loop() -> None:
        raise Hanging

    def in_thread() -> None:
        raise Hanging

    only = Retry(max_attempts=2, initial="1ms", jitter=0, only=(Hanging,))
    step = app.step(retry=only)(in_loop) if is_async else app.step(retry=only)(in_thread)

    @app.workflow
    async def go() -> str:
        try:
            await step()
        except RemoteError as error:
            return f"{error.type.rpartition('.')[2]}: {error.message}"
        return "nothing"

    try:
        assert app.run(go) == "Hanging: an error at which a look takes more than 0.01 s"
    finally:
        go_on.set()
    assert caplog.text.count("a look at it does not end") == 2


def test_an_error_that_waits_for_a_thread_keeps_its_text(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one at which a look hangs: only its own look counts."""
    monkeypatch.setattr(failures, "LOOK_S", 0.2)
    monkeypatch.setattr(failures, "_THREADS", 1)
    go_on = threading.Event()

    class Hanging(Exception):
        def __str__(self) -> str:
            go_on.wait()
            return "late"

    class Speaking(Exception):
        def __str__(self) -> str:
            return "fine"

    app = App(dsn)

    @app.step
    async def fail(error: str) -> None:
        raise {"hanging": Hanging, "speaking": Speaking}[error]

    @app.workflow
    async def go() -> list[str]:
        errors = await asyncio.gather(fail("hanging"), fail("speaking"), return_exceptions=True)
        return [str(error).rpartition(": ")[2] for error in errors]

    try:
        assert app.run(go) == ["an error at which a look takes more than 0.2 s", "fine"]
    finally:
        go_on.set()


class Odd(dict[str, int]):
    def __eq__(self, other: object) -> bool:
        raise SystemExit

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def test_results_that_raise(dsn: str) -> None:
    """A result that raises when it is compared or shown is an error of its step, or of its workflow."""
    app = App(dsn)

    @app.step
    async def in_loop() -> Any:
        return Odd(a=1)

    @app.step
    def in_thread() -> Any:
        return Odd(a=1)

    @app.workflow
    async def returns() -> Any:
        return Odd(a=1)

    @app.workflow
    async def go() -> list[str]:
        caught = []
        for call in (in_loop, in_thread, returns):
            try:
                await call()
            except Exception as error:
                caught.append(type(error).__name__)
        return caught

    assert app.run(go) == ["EncodeError", "EncodeError", "RunFailed"]
