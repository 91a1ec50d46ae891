"""Workflows as people write them, in which a replay can repeat everything: the check may find nothing.

Each stands beside a trap: a name of the table in another role, a clock in a step, a set that is only asked.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import enum
import functools
import hashlib
import itertools
import json
import logging
import math
import operator
import os.path
import random
import re
import secrets
import subprocess
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Final
from urllib import parse

import httpx
import msgspec

from pyengine import App, Retry, Signal, ctx

app = App("postgresql://nowhere")
logger = logging.getLogger(__name__)
approve = Signal("approve", bool)

RATES: Final = {"eur": Decimal("1.08"), "usd": Decimal(1)}
DEFAULT_TAGS = ["new", "unread"]
KNOWN = {"gold", "silver"}
MARKER = object()
total = 0


class Level(enum.Enum):
    """Levels of support."""

    LOW = 1
    HIGH = 2


@dataclass
class Order:
    """An order; `open` and `id` are names of fields here."""

    id: str
    open: bool = True
    lines: list[str] = field(default_factory=list)

    def now(self) -> str:
        """Return a text; no clock."""
        return f"{self.id} now"


class Clock:
    """A clock of somebody's own, which is given by hand."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        """Return the instant that was given."""
        return self.at


@app.step
async def charge(order: str, cents: int = 0) -> str:
    """Steps may do everything."""
    return f"{order} {cents} {time.time()} {random.random()} {uuid.uuid4()}"


@app.step
def read_file(path: str) -> str:
    """Plain steps too."""
    return Path(path).read_text(encoding="utf-8")


@app.step(retry=Retry(max_attempts=3))
async def fetch(url: str) -> str:
    """Fetch a page."""
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).text


@app.step
async def note(text: str) -> None:
    """Write something down, in the list of the process."""
    DEFAULT_TAGS.append(text)


def slug(text: str) -> str:
    """Return a text for an address; a pure helper."""
    return re.sub(r"\W+", "-", text.lower()).strip("-")


def checked(cents: int) -> int:
    """Raise or return; a helper that calls another one."""
    return deeper(cents) if cents >= 0 else 0


def deeper(cents: int) -> int:
    """Two levels below a workflow, which the check does not follow."""
    return cents + int(time.time() * 0)


@contextlib.contextmanager
def phase(name: str) -> Iterator[str]:
    """Log a phase."""
    ctx.log.info("begin %s", name)
    yield name


@app.workflow
async def w01_checkout(order: str, cents: int) -> str:
    receipt = await charge(order, checked(cents))
    await ctx.sleep("1h")
    return receipt


@app.workflow
async def w02_clock_of_the_engine(days: int) -> str:
    until = ctx.now() + timedelta(days=days)
    await ctx.sleep_until(until)
    return until.strftime("%Y-%m-%d")


@app.workflow
async def w03_dates_from_texts(day: str) -> int:
    first = date.fromisoformat(day)
    second = datetime(2026, 1, 2, tzinfo=UTC)
    return (first - second.date()).days + datetime.fromtimestamp(0, UTC).year


@app.workflow
async def w04_seeded(names: list[str]) -> list[str]:
    rng = random.Random(ctx.random())
    rng.shuffle(names)
    return [rng.choice(names), *names]


@app.workflow
async def w05_ids() -> list[str]:
    own = ctx.uuid4()
    derived = uuid.uuid5(uuid.NAMESPACE_URL, f"https://example.com/{own}")
    return [str(own), str(derived), str(uuid.UUID(int=5))]


@app.workflow
async def w06_gather(urls: list[str]) -> list[str]:
    return list(await asyncio.gather(*(fetch(url) for url in urls)))


@app.workflow
async def w07_task_group(urls: list[str]) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(url)) for url in urls]
    return [task.result() for task in tasks]


@app.workflow
async def w08_limited(urls: list[str]) -> int:
    limit = asyncio.Semaphore(3)

    async def one(url: str) -> int:
        async with limit:
            return len(await fetch(url))

    return sum(await asyncio.gather(*map(one, urls)))


@app.workflow
async def w09_timeout(url: str) -> str | None:
    try:
        async with asyncio.timeout(30):
            return await fetch(url)
    except TimeoutError:
        return None


@app.workflow
async def w10_errors_of_libraries(url: str) -> str:
    try:
        return await fetch(url)
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code}"
    except subprocess.CalledProcessError as error:
        raise httpx.InvalidURL(str(error.returncode)) from error


@app.workflow
async def w11_approval(order: str) -> bool:
    try:
        return await ctx.receive(approve, timeout="3 days")
    except TimeoutError:
        await note(order)
        return False


@app.workflow
async def w12_membership(tags: list[str]) -> list[str]:
    seen: set[str] = set()
    unique = []
    for tag in tags:
        if tag not in seen and tag in {"gold", "silver"} | KNOWN:
            seen.add(tag)
            unique.append(tag)
    return unique


@app.workflow
async def w13_sorted_sets(tags: list[str]) -> str:
    both = set(tags) & KNOWN
    for tag in sorted(both):
        await note(tag)
    return ",".join(sorted({tag.upper() for tag in set(tags)}))


@app.workflow
async def w14_counts(tags: list[str]) -> dict[str, int]:
    counts = collections.Counter(tags)
    counts.update(["extra"])
    return {"kinds": len(set(tags)), "most": max(counts.values()), "any": int(any(t for t in set(tags)))}


@app.workflow
async def w15_numbers() -> int:
    found = 0
    for n in {1, 2, 3}:
        found += n
    return found + math.floor(2.5)


@app.workflow
async def w16_hashes(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() + str(zlib.crc32(text.encode()))


@app.workflow
async def w17_names_of_builtins(id: str, hash: str, open: bool, input: str) -> str:
    return f"{id} {hash} {input}" if open else id


@app.workflow
async def w18_fields(order_id: str) -> str:
    order = Order(id=order_id)
    if order.open:
        order.lines.append("first")
    return order.now()


@app.workflow
async def w19_clock_by_hand() -> str:
    clock = Clock(ctx.now())
    return clock.now().isoformat()


@app.workflow
async def w20_constants(currency: str) -> str:
    rate = RATES.get(currency, RATES["usd"])
    tags = list(DEFAULT_TAGS)
    tags.append(currency)
    return f"{rate} {tags} {total} {MARKER is None}"


@app.workflow
async def w21_copies() -> dict[str, str]:
    rates = {**RATES, "chf": Decimal("1.1")}
    rates.update(gbp=Decimal("1.2"))
    other = RATES.copy()
    return {name: str(rate) for name, rate in rates.items() if name not in other}


@app.workflow
async def w22_shadows() -> list[str]:
    DEFAULT_TAGS = ["mine"]
    total = 1
    DEFAULT_TAGS.append("own")
    total += 1
    return DEFAULT_TAGS * total


@app.workflow
async def w23_paths(name: str) -> str:
    path = PurePosixPath("/data") / name
    target = Path(name).with_suffix(".json").parent / "x"
    return await read_file(os.path.join(str(path.parent), target.name))


@app.workflow
async def w24_json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


@app.workflow
async def w25_urls(query: str) -> str:
    return parse.urlunsplit(("https", "example.com", "/", parse.urlencode({"q": query}), ""))


@app.workflow
async def w26_saga(order: str) -> str:
    undo: list[Any] = []
    try:
        undo.append(functools.partial(note, "refund"))
        return await charge(order)
    except RuntimeError:
        while undo:
            await undo.pop()()
        raise


@app.workflow
async def w27_children(orders: list[str]) -> list[str]:
    return [await w01_checkout(order, 5) for order in orders]


@app.workflow
async def w28_detached(order: str) -> str:
    child = ctx.start(w01_checkout, order, 1, detached=True)
    return child.id


@app.workflow
async def w29_first(order: str) -> int:
    index, _ = await ctx.first(ctx.receive(approve), ctx.sleep("1d"), charge(order))
    return index


@app.workflow
async def w30_promise() -> str:
    made = ctx.promise(str, name="label")
    await note(made.id)
    return await made


@app.workflow
async def w31_levels(level: int) -> str:
    match Level(level):
        case Level.LOW:
            return "later"
        case Level.HIGH:
            return "now"


@app.workflow
async def w32_batches(items: list[str]) -> int:
    done = 0
    for batch in itertools.batched(items, 10) if hasattr(itertools, "batched") else [items]:
        await ctx.gather(*(note(one) for one in batch))
        done += len(batch)
    return done


@app.workflow
async def w33_reduce(prices: list[int]) -> int:
    return functools.reduce(operator.add, prices, 0) + max(map(abs, prices))


@app.workflow
async def w34_with_helper(text: str) -> str:
    with phase(slug(text)) as name:
        return await charge(name)


@app.workflow
async def w35_nonlocal(items: list[str]) -> int:
    found = 0

    def count(item: str) -> None:
        nonlocal found
        found += len(item)

    for item in items:
        count(item)
    return found


@app.workflow
async def w36_generators(n: int) -> list[int]:
    async def numbers() -> AsyncIterator[int]:
        for k in range(n):
            await ctx.sleep(1)
            yield k

    async with contextlib.aclosing(numbers()) as each:
        return [k async for k in each]


@app.workflow
async def w37_logging(order: str) -> None:
    ctx.log.info("began %s", order)
    if not ctx.replaying:
        logger.debug("began %s", order)
        print("began", order)


@app.workflow
async def w38_poll(url: str) -> str:
    for attempt in itertools.count(1):
        answer = await fetch(url)
        if answer or attempt > 5:
            return answer
        await asyncio.sleep(2**attempt)
    return ""


@app.workflow
async def w39_continue(state: dict[str, int]) -> None:
    state["rounds"] = state.get("rounds", 0) + 1
    await ctx.sleep("1h")
    ctx.continue_as_new(state)


@app.workflow
async def w40_http(url: str) -> int:
    answer = await ctx.http("GET", url)
    return answer.status


@app.workflow
async def w41_transaction(amount: int) -> int:
    async with ctx.transaction("move") as tx:
        left: int = await tx.fetchval("update account set n = n - $1 returning n", amount)
        await tx.execute("insert into entry values ($1)", left)
    return left


@app.workflow
async def w42_events() -> str:
    ready, queue = asyncio.Event(), asyncio.Queue[str]()

    async def fill() -> None:
        await queue.put(await charge("x"))
        ready.set()

    task = asyncio.create_task(fill())
    await ready.wait()
    await task
    return await queue.get()


@app.workflow
async def w43_locals_like_modules(texts: list[str]) -> str:
    time = ctx.now()
    random = ctx.random()
    secrets = [text for text in texts if len(text) > random]
    return f"{time.isoformat()} {secrets}"


@app.workflow
async def w44_deque(items: list[str]) -> list[str]:
    todo = collections.deque(items)
    by_length: dict[int, list[str]] = collections.defaultdict(list)
    while todo:
        one = todo.popleft()
        by_length[len(one)].append(one)
    return [text for length in sorted(by_length) for text in by_length[length]]


@app.workflow
async def w45_fixed_time() -> str:
    at = time.gmtime(0)
    return time.strftime("%H:%M", at) + time.strftime("%H:%M", time.localtime(86_400))


@app.workflow
async def w46_comparison(one: str, other: str) -> bool:
    compared = 0

    def compare() -> bool:
        nonlocal compared
        compared += 1
        return secrets.compare_digest(one, other)

    return compare() and compared == 1


@app.workflow
async def w47_file_like(document: Any) -> str:
    if document.exists() and document.open:
        return str(document.read_text())
    return str(document.glob)


@app.workflow
async def w48_patched(order: str) -> str:
    if ctx.patched("fraud"):
        await note(order)
    return await charge(order)


@app.workflow(name="nightly", version="2", deadline="1h")
async def w49_keyword(*, at: datetime, days: int = 1) -> str:
    def later(moment: datetime = at) -> datetime:
        return moment + timedelta(days=days)

    return later().isoformat()


@app.workflow
async def w50_join(names: list[str]) -> dict[str, str]:
    async with ctx.join_set() as calls:
        for name in dict.fromkeys(names):
            calls.submit(charge(name))
        return {str(n): await calls.next() for n in range(len(set(names)))}


@dataclass
class Parcel:
    """A parcel, whose one field by position comes after one of the class and one by name."""

    kind: ClassVar[str] = "parcel"
    weight: int = field(default=1, kw_only=True)
    id: uuid.UUID = field(default_factory=uuid.uuid4)


class Shipment(msgspec.Struct):
    """A shipment, whose annotation names what is defined later."""

    parcels: list[Label]
    id: uuid.UUID = msgspec.field(default_factory=uuid.uuid4)


@app.workflow
async def w51_given(name: str) -> str:
    parcel = Parcel(ctx.uuid4(), weight=2)
    return f"{parcel.id} {Shipment([Label(name)], ctx.uuid4())}"


class Label(msgspec.Struct):
    """A label."""

    text: str
