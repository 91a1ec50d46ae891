"""The SQL door from services in Go, TypeScript and Java: the programs in `services` do what they say.

Each is built once, with the driver's own package (Debian's, npm's), against the test's database over TCP,
while a Python worker serves. Where a toolchain or a package is missing the test fails in CI and with --full;
elsewhere it is skipped, and says which. Node comes with the extra `test`, Go from Debian where it is not
installed, Java must be. CI tries TypeScript alone: Go and Java are of the full size.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyengine import App, ctx
from tests.support.debian import NoPackage, unpacked
from tests.support.sdks import NODE, NoSdk, missing, npm_packages

SERVICES = Path(__file__).parent / "services"
CACHE = Path(platformdirs.user_cache_dir("pyengine-tests")) / "services"
BUILD_S = 400
# of Debian 12 and 13
GO = ("1.19", "1.24")
NPM = ("pg@8", "@types/pg@8", "@types/node@22", "typescript@5")
ORDERS = "create table public.orders (id bigint primary key, amount numeric not null, shipped boolean)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A service that is ready to run.

    Args:
        command: what starts it; the order's number and amount follow.
        url: makes its DATABASE_URL of a port on this machine, a user and a database.
    """

    command: tuple[str, ...]
    url: Callable[[int, str, str], str]


@dataclass
class Fulfilled:
    """What the workflow returns to a service."""

    order: int
    paid_by: str


def made(source: Path, build: Callable[[Path], None]) -> Path:
    """A folder with what was built of a source, built anew only if the source has changed."""
    text = source.read_bytes()
    folder = CACHE / f"{source.name}-{hashlib.sha256(text).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / "made").touch()
    return folder


def run(*command: str | Path, folder: Path, **environment: str) -> None:
    """Run a part of a build; what it says is shown if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def go_program() -> Path:
    """Go: the one on the PATH, or Debian's.

    Raises:
        NoPackage: there is none.
    """
    if (found := shutil.which("go")) is not None:
        return Path(found)
    reason = NoPackage("no version of Go is known")
    for version in GO:
        try:
            root = unpacked(f"golang-{version}-go", f"golang-{version}-src")
        except NoPackage as told:
            reason = told
        else:
            return root / "usr" / "lib" / f"go-{version}" / "bin" / "go"
    raise reason


def go(source: Path = SERVICES / "order.go") -> Program:
    """A program with Debian's lib/pq, built without a network."""
    program = go_program()
    path = unpacked("golang-github-lib-pq-dev") / "usr" / "share" / "gocode"

    def build(folder: Path) -> None:
        told = {"GO111MODULE": "off", "GOFLAGS": "", "GOPATH": str(path), "GOCACHE": str(CACHE / "go-build")}
        # nothing in it needs a compiler of C
        told |= {"CGO_ENABLED": "0", "GOROOT": str(program.resolve().parent.parent)}
        run(program, "build", "-o", folder / source.stem, source, folder=folder, **told)

    # the second setting has it send a statement in one piece, which a pooler needs
    return Program(
        command=(str(made(source, build) / source.stem),),
        url=lambda port, user, name: (
            f"postgres://{user}@127.0.0.1:{port}/{name}?sslmode=disable&binary_parameters=yes"
        ),
    )


def typescript() -> Program:
    """`order.ts` with `pg`, checked and translated by the compiler, run by the Node of the extra `test`."""
    packages = npm_packages("services-pg-8-typescript-5", *NPM) / "node_modules"

    def build(folder: Path) -> None:
        (folder / "package.json").write_text('{"type": "module", "private": true}', encoding="utf-8")
        (folder / "node_modules").symlink_to(packages)
        shutil.copy(SERVICES / "order.ts", folder)
        options = ("--strict", "--noUncheckedIndexedAccess", "--skipLibCheck", "--target", "es2022")
        kinds = ("--module", "nodenext", "--moduleResolution", "nodenext", "--types", "node")
        run(NODE, packages / "typescript" / "bin" / "tsc", *options, *kinds, "order.ts", folder=folder)

    return Program(
        command=(str(NODE), str(made(SERVICES / "order.ts", build) / "order.js")),
        url=lambda port, user, name: f"postgres://{user}@127.0.0.1:{port}/{name}",
    )


def java(source: Path = SERVICES / "Order.java") -> Program:
    """A program with Debian's JDBC driver."""
    for name in ("javac", "java"):
        if shutil.which(name) is None:
            raise NoPackage(f"there is no {name} here: apt-get install default-jdk-headless")
    driver = unpacked("libpostgresql-jdbc-java") / "usr" / "share" / "java" / "postgresql.jar"

    def build(folder: Path) -> None:
        run("javac", "-Xlint:all", "-Werror", "-d", folder, source, folder=folder)

    folder = made(source, build)
    return Program(
        command=("java", "-XX:TieredStopAtLevel=1", "-cp", f"{driver}{os.pathsep}{folder}", source.stem),
        url=lambda port, user, name: (
            f"jdbc:postgresql://127.0.0.1:{port}/{name}?user={user}&prepareThreshold=0"
        ),
    )


@pytest.fixture
def port(dsn: str) -> Iterator[int]:
    """A port on this machine that leads to the server's socket: not every driver knows sockets of files."""
    told = conninfo_to_dict(dsn)
    path = f"{told['host']}/.s.PGSQL.{told['port']}"
    ready: list[int] = []
    began, loop = threading.Event(), asyncio.new_event_loop()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(path)
        await asyncio.gather(forward(reader, ours), forward(theirs, writer), return_exceptions=True)

    async def serve() -> None:
        server = await asyncio.start_server(meet, "127.0.0.1", 0, family=socket.AF_INET)
        ready.append(server.sockets[0].getsockname()[1])

    def main() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        # a test that is skipped stops the loop at once, and only what runs for ever may be stopped
        loop.call_soon(began.set)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    began.wait()
    yield ready[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


LANGUAGES = [
    pytest.param(go, id="go", marks=pytest.mark.full),
    pytest.param(typescript, id="typescript"),
    pytest.param(java, id="java", marks=pytest.mark.full),
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_service_orders_signals_and_reads_the_result(
    request: pytest.FixtureRequest, dsn: str, direct: str, port: int, language: Callable[[], Program]
) -> None:
    """The order and its run are there together, the signal reaches the run, and its result is printed; where
    the order cannot be written there is no run either."""
    try:
        program = language()
    except (NoPackage, NoSdk) as reason:
        missing(NoSdk(str(reason)), full=request.config.getoption("--full"))
    told = conninfo_to_dict(direct)
    environment = os.environ | {"DATABASE_URL": program.url(port, str(told["user"]), str(told["dbname"]))}
    app = App(dsn)

    @app.step
    def ship(order: int) -> None:
        with psycopg.connect(direct, autocommit=True) as mine:
            mine.execute("update public.orders set shipped = true where id = %s", (order,))

    @app.workflow
    async def fulfil(order: int) -> Fulfilled:
        paid = await ctx.receive("paid", type=dict[str, str])
        await ship(order)
        return Fulfilled(order=order, paid_by=paid["by"])

    def serve(order: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program.command, str(order), "19.90"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    async def main() -> list[subprocess.CompletedProcess[str]]:
        async with app.worker():
            return [await asyncio.to_thread(serve, order) for order in (42, 43)]

    with psycopg.connect(direct, autocommit=True) as conn:
        conn.execute(ORDERS)
        conn.execute("insert into public.orders values (43, 1)")
        done, refused = asyncio.run(main())
        assert done.returncode == 0, done.stderr
        assert done.stdout.replace(" ", "").strip() == '{"order":42,"paid_by":"card"}'
        assert refused.returncode != 0
        assert "duplicate key" in refused.stderr
        orders = conn.execute("select id, amount::text, shipped from public.orders order by id").fetchall()
        assert orders == [(42, "19.90", True), (43, "1", None)]
        runs = conn.execute("select id, state from durable.runs").fetchall()
        assert runs == [("order-42", "completed")]
        signals = conn.execute("select count(*) from durable.journal_events where event ilike 'signal%'")
        assert signals.fetchone() != (0,)
