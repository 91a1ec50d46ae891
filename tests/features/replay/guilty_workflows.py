"""Workflows that a replay cannot repeat: a line with `guilty:` has a warning with those words, no other one.

Only test_determinism.py imports this module, and nothing here ever runs.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import datetime as dt
import glob
import itertools
import logging
import os
import pathlib
import random
import secrets
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import time as clock
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime
from os import environ, getenv
from pathlib import Path
from random import randint
from random import shuffle as mix
from secrets import choice
from time import perf_counter as tick
from time import sleep, time_ns
from typing import Any
from uuid import uuid4 as new_id

import anyio
import asyncpg
import httpx
import msgspec
import psycopg
import pydantic

from pyengine import App, ctx

app = App("postgresql://nowhere")

CACHE: dict[str, str] = {}
SEEN = set[str]()
QUEUE = collections.deque[str]()
NUMBERS = itertools.count()
RNG = random.Random(7)
HTTP = httpx.Client()
POOL = ThreadPoolExecutor()
HOME = Path("/srv/data")
now = datetime.now
logger = logging.getLogger(__name__)
calls = 0
LONG_AGO = datetime(2026, 1, 1, tzinfo=dt.UTC)


class Counter:
    """A counter of the process."""

    hits = 0
    names: list[str] = []  # noqa: RUF012


STATE = Counter()


@app.step
async def save(value: Any) -> None:
    """A step, in which everything is allowed."""
    CACHE["last"] = str(value)


def stamp() -> str:
    """Return the time: a helper above the workflows."""
    return datetime.now().isoformat()  # guilty: calls stamp(), which calls datetime.now() … ctx.now()


def wrapped(fn: Callable[[], Any]) -> Any:
    """Call a function."""
    return fn()


@app.workflow
async def clocks() -> None:
    await save(time.time())  # guilty: calls time.time() … ctx.now()
    await save(clock.monotonic())  # guilty: calls clock.monotonic() … ctx.now()
    await save(tick())  # guilty: calls tick(), which is time.perf_counter() … ctx.now()
    await save(time_ns() // 1000)  # guilty: calls time_ns() … ctx.now()
    await save(datetime.now())  # guilty: calls datetime.now() … ctx.now()
    await save(dt.datetime.utcnow())  # guilty: calls dt.datetime.utcnow() … ctx.now()
    await save(dt.datetime.now(dt.UTC))  # guilty: calls dt.datetime.now() … ctx.now()
    await save(datetime.today())  # guilty: calls datetime.today() … ctx.now()
    await save(date.today())  # guilty: calls date.today() … ctx.now()
    await save(now())  # guilty: calls now() … ctx.now()
    await save(time.strftime("%H:%M"))  # guilty: calls time.strftime() … ctx.now()
    await save(time.localtime())  # guilty: calls time.localtime() … ctx.now()
    measure = time.perf_counter
    await save(measure())  # guilty: calls measure(), which is time.perf_counter() … ctx.now()
    sleep(1)  # guilty: calls sleep() … await ctx.sleep()


@app.workflow
async def chances(names: list[str]) -> None:
    if random.random() < 0.5:  # guilty: calls random.random() … ctx.random()
        await save(randint(1, 6))  # guilty: calls randint() … ctx.randint()
    mix(names)  # guilty: calls mix(), which is random.shuffle() … ctx.shuffle()
    await save(random.Random().random())  # guilty: calls random.Random() … ctx.random()
    await save(RNG.choice(names))  # guilty: calls RNG.choice() … ctx.random()
    await save(sorted(names, key=lambda _: random.random()))  # guilty: calls random.random() … ctx.random()
    await save(wrapped(random.random))  # guilty: hands on random.random() … ctx.random()
    await save(os.urandom(8).hex())  # guilty: calls os.urandom() … ctx.random()
    await save(secrets.token_hex())  # guilty: calls secrets.token_hex() … ctx.uuid4().hex
    await save(choice(names))  # guilty: calls choice() … ctx.choice()


@app.workflow
async def identities(order: Any) -> None:
    await save(uuid.uuid4())  # guilty: calls uuid.uuid4() … ctx.uuid4()
    await save(str(new_id()))  # guilty: calls new_id(), which is uuid.uuid4() … ctx.uuid4()
    await save(uuid.uuid1().hex)  # guilty: calls uuid.uuid1() … ctx.uuid7()
    await save(id(order))  # guilty: calls id() … a name or a number
    await save(hash(order) % 8)  # guilty: calls hash() … hashlib


@app.workflow
async def environment() -> None:
    await save(os.environ["REGION"])  # guilty: uses os.environ … a step, or an argument of the workflow
    await save(environ.get("REGION"))  # guilty: uses os.environ … a step, or an argument of the workflow
    await save(os.getenv("REGION"))  # guilty: calls os.getenv() … a step, or an argument of the workflow
    if "REGION" in os.environ and getenv("X"):  # guilty: uses os.environ … a step
        await save(os.getpid())  # guilty: calls os.getpid() … a step
    await save(socket.gethostname())  # guilty: calls socket.gethostname() … a step


@app.workflow
async def files(name: str, folder: Path) -> None:
    with open(name) as lines:  # guilty: calls open() … a step
        await save(lines.read())
    await save(Path(name).read_text())  # guilty: calls Path(name).read_text() … a step
    await save((pathlib.Path("/a") / name).exists())  # guilty: .exists() … a step
    target = HOME / name
    target.parent.mkdir()  # guilty: calls target.parent.mkdir() … a step
    folder.joinpath("x").write_text("")  # guilty: calls folder.joinpath('x').write_text() … a step
    await save([str(each) for each in HOME.iterdir()])  # guilty: calls HOME.iterdir() … a step
    await save(os.path.exists(name))  # guilty: calls os.path.exists() … a step
    await save(os.listdir(name) + glob.glob("*"))  # guilty: calls os.listdir() … a step
    shutil.rmtree(name)  # guilty: calls shutil.rmtree() … a step
    with tempfile.TemporaryDirectory() as other:  # guilty: calls tempfile.TemporaryDirectory() … a step
        await save(other)


@app.workflow
async def networks(url: str) -> None:
    await save(HTTP.get(url).text)  # guilty: calls HTTP.get() … ctx.http
    await save(httpx.post(url).text)  # guilty: calls httpx.post() … ctx.http
    async with httpx.AsyncClient() as client:  # guilty: calls httpx.AsyncClient() … ctx.http
        await save((await client.get(url)).text)
    urllib.request.urlopen(url)  # guilty: calls urllib.request.urlopen() … ctx.http
    socket.create_connection(("a", 1))  # guilty: calls socket.create_connection() … a step
    await asyncio.open_connection("a", 1)  # guilty: calls asyncio.open_connection() … ctx.http
    sqlite3.connect("x")  # guilty: calls sqlite3.connect() … a step
    await asyncpg.connect(url)  # guilty: calls asyncpg.connect() … a step
    psycopg.connect(url)  # guilty: calls psycopg.connect() … a step


@app.workflow
async def processes() -> None:
    subprocess.run(["ls"], check=True)  # guilty: calls subprocess.run() … a step
    os.system("ls")  # guilty: calls os.system() … a step
    await asyncio.create_subprocess_exec("ls")  # guilty: calls asyncio.create_subprocess_exec() … a step
    await anyio.to_thread.run_sync(stamp)  # guilty: calls anyio.to_thread.run_sync() … a step
    await save(await anyio.Path("x").exists())  # guilty: calls anyio.Path() … a step
    threading.Thread(target=stamp).start()  # guilty: calls threading.Thread() … a step
    await asyncio.to_thread(time.sleep, 1)  # guilty: calls asyncio.to_thread() … a step
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, stamp)  # guilty: calls loop.run_in_executor() … a step
    asyncio.get_event_loop().call_soon_threadsafe(stamp)  # guilty: .call_soon_threadsafe() … a step
    POOL.submit(stamp)  # guilty: calls POOL.submit() … a step
    with concurrent.futures.ThreadPoolExecutor() as pool:  # guilty: ThreadPoolExecutor() … a step
        pool.submit(wrapped, stamp)
    asyncio.run(save(1))  # guilty: calls asyncio.run() … await the coroutine


@app.workflow
async def globals_written(name: str) -> None:
    global calls
    calls += 1  # guilty: changes the global calls … a variable of the workflow
    CACHE[name] = "x"  # guilty: changes the global CACHE … a variable of the workflow
    del CACHE[name]  # guilty: changes the global CACHE … a variable of the workflow
    CACHE.update(a="b")  # guilty: changes the global CACHE … a variable of the workflow
    CACHE.setdefault(name, "y")  # guilty: changes the global CACHE … a variable of the workflow
    SEEN.add(name)  # guilty: changes the global SEEN … a variable of the workflow
    QUEUE.append(name)  # guilty: changes the global QUEUE … a variable of the workflow
    Counter.hits += 1  # guilty: changes the global Counter … a variable of the workflow
    Counter.names.append(name)  # guilty: changes the global Counter.names … a variable of the workflow
    STATE.hits = 2  # guilty: changes the global STATE … a variable of the workflow
    LATER.append(name)  # guilty: changes the global LATER … a variable of the workflow
    await save(next(NUMBERS))  # guilty: changes the global NUMBERS … a variable of the workflow


@app.workflow
async def orders(names: list[str]) -> None:
    for name in {"a", "b"}:  # guilty: iterates over a set … sorted(...)
        await save(name)
    for name in set(names) - {"a"}:  # guilty: iterates over a set … sorted(...)
        await save(name)
    rest = set(names)
    rest |= {"z"}
    await save([name for name in rest])  # noqa: C416  # guilty: iterates over a set … sorted(...)
    await save(list(rest))  # guilty: iterates over a set … sorted(...)
    await save(",".join(rest))  # guilty: iterates over a set … sorted(...)
    await save((*rest, "y"))  # guilty: iterates over a set … sorted(...)
    await ctx.gather(*(save(name) for name in SEEN))  # guilty: iterates over a set … sorted(...)
    await save({name: 1 for name in frozenset(names)})  # noqa: C420  # guilty: iterates over a set … sorted(...)
    await save(rest.pop())  # guilty: iterates over a set … sorted(...)
    await save(all([await save(name) for name in rest]))  # guilty: iterates over a set … sorted(...)


@app.workflow
async def inside() -> None:
    import random as chance
    from time import time as seconds

    async def inner() -> float:
        return time.time()  # guilty: calls time.time() … ctx.now()

    await save(chance.random())  # guilty: calls chance.random() … ctx.random()
    await save(seconds())  # guilty: calls seconds(), which is time.time() … ctx.now()
    await inner()


@app.workflow
async def told() -> None:
    print("began")  # guilty: calls print() … ctx.log.info()
    logger.info("began")  # guilty: calls logger.info() … ctx.log.info()
    logging.warning("began")  # guilty: calls logging.warning() … ctx.log.info()
    await tell()


async def tell() -> None:
    """Print: a helper of workflows."""
    if ctx.attempt > 1:
        print("again")  # guilty: workflow told calls tell(), which calls print() … ctx.log.info()


@app.workflow(name="named", version="2")
async def helped() -> None:
    await save(stamp())
    await save(drawn())
    await save(time.time())  # durable: ok
    await save(
        time.time()  # durable: ok, the line of the call counts
    )
    await save(silent())  # durable: ok


def drawn() -> float:
    """Draw: a helper below the workflows."""
    return random.random()  # guilty: workflow named calls drawn(), which calls random.random() … ctx.random()


def silent() -> str:
    """Return an id; who calls it has silenced that."""
    return uuid.uuid4().hex


class Cart:
    """An object whose methods are workflows."""

    sold = 0

    def __init__(self) -> None:
        self.total = 0
        self.items: dict[str, int] = {}
        self.last: str | None = None

    async def fill(self, names: list[str]) -> None:
        """A workflow."""

        async def inner() -> None:
            self.last = "x"  # guilty: changes self.last … a variable of the workflow, since every replay

        for name in names:
            self.total += 1  # guilty: workflow cart.fill changes self.total … a variable of the workflow
            self.items[name] = 1  # guilty: changes self.items[name] … a variable of the workflow
            self.items.update(x=1)  # guilty: changes self.items … a variable of the workflow
            self.count()
        await inner()

    def count(self) -> None:
        """A method that the workflow calls."""
        del self.last  # guilty: calls self.count(), which changes self.last … a variable of the workflow

    @classmethod
    async def sell(cls) -> None:
        """A workflow of the class."""
        cls.sold += 1  # guilty: workflow cart.sell changes cls.sold … a variable of the workflow


app.workflow(name="cart.fill")(Cart().fill)
app.workflow(name="cart.sell")(Cart.sell)


def around() -> None:
    """Code around a workflow."""
    found = 0

    @app.workflow
    async def finds() -> None:
        nonlocal found
        found += 1  # guilty: workflow finds changes the nonlocal found … a variable of the workflow


around()


def stamped() -> float:
    """A function that makes the value of a field."""
    return time.time()


@dataclass
class Receipt:
    """A dataclass whose fields make their own values."""

    item: str
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    at: datetime = field(default_factory=lambda: datetime.now(dt.UTC))
    tags: list[str] = field(default_factory=list)


class Model(pydantic.BaseModel):
    """Likewise of pydantic."""

    number: float = pydantic.Field(default_factory=stamped)


class Record(msgspec.Struct):
    """Likewise of msgspec."""

    number: float = msgspec.field(default_factory=random.random)


@app.workflow
async def receipts() -> None:
    await save(Receipt("a", at=LONG_AGO))  # guilty: whose field 'id' calls uuid.uuid4() … ctx.uuid4()
    await save(Receipt("a", uuid.UUID(int=1)))  # guilty: field 'at' calls datetime.now() … ctx.now()
    await save(Receipt("a", uuid.UUID(int=1), tags=[], at=LONG_AGO))
    await save(Model())  # guilty: makes Model, whose field 'number' calls time.time() … ctx.now()
    await save(Record())  # guilty: makes Record, whose field 'number' calls random.random() … ctx.random()
    await save(Model(number=1.0))


LATER: list[str] = []
