"""Adapter workers on a real database with real adapter processes: polls, waits, failures, stops, kills."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from pyengine.core.database.listener import Listener
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.worker.ticker import Ticker
from pyengine.features.calls.adapter_leases import DatabaseAttempts
from pyengine.features.calls.adapter_process import Adapter, Limits
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.program_executor import ProgramExecutor
from tests.features.calls.adapters import wrong
from tests.features.calls.scene import Scene
from tests.support.broken_parts import Fault, break_part
from tests.system.crash.processes import kill, launch, stop

BATCH = Path(__file__).parent / "adapters" / "batch.py"
pytestmark = pytest.mark.usefixtures("ends_processes")
X, Y = "dml+exec://x/f", "dml+exec://y/f"
WAIT_S = 60.0


@pytest.fixture
def scene(dsn: str, direct: str) -> Iterator[Scene]:
    """Two scopes that other sessions see; time passes."""
    with psycopg.connect(direct, autocommit=True) as conn:
        made = Scene(conn)
        made.scope("s", "t")
        yield made


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """The fake batch system, as adapter x."""
    monkeypatch.setenv("BATCH", str(tmp_path))
    return Adapter(name="x", path=wrong.write(tmp_path, "batch", f"exec {sys.executable} {BATCH}"))


def lines(path: Path) -> list[str]:
    """The lines of a file that may not be there."""
    return path.read_text().splitlines() if path.exists() else []


async def until(question: Callable[[], Any], what: str = "it") -> None:
    """Wait until something is true."""
    until_s = time.monotonic() + WAIT_S
    while not question():
        assert time.monotonic() < until_s, f"{what} never happened"
        await asyncio.sleep(0.02)


def serve(
    dsn: str,
    adapters: list[Adapter],
    body: Callable[[AdapterWorker], Coroutine[Any, Any, None]],
    *,
    time_s: float = 60.0,
    **options: Any,
) -> None:
    """Run a worker while a body runs."""
    passed = ("BATCH", "BATCH_PAUSE_MS")
    programs = ProgramExecutor(adapters, limits=Limits(time_s=time_s), passed=passed)

    async def main() -> None:
        async with AdapterWorker([programs], dsn, **options) as worker:
            await body(worker)

    asyncio.run(main())


def serve_until(dsn: str, adapters: list[Adapter], question: Callable[[], Any], **options: Any) -> None:
    """Run a worker until something is true."""

    async def body(worker: AdapterWorker) -> None:
        await until(question)

    serve(dsn, adapters, body, **options)


def leases(scene: Scene) -> int:
    """How many attempts are leased."""
    return int(scene.one("select count(*) from durable._tasks where state = 'acquired'"))


def polls(scene: Scene, answer: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The polls of an attempt: their classes and messages."""
    rows = scene.all(
        "select class, message from durable._call_polls where execution_key = decode(%s, 'hex') order by seq",
        answer["execution_key"],
    )
    return [(row[0], row[1]) for row in rows]


def error_code(scene: Scene, answer: dict[str, Any]) -> str:
    """Why an attempt was given up."""
    key = answer["execution_key"]
    text = scene.one("select error from durable._call_attempts where execution_key = decode(%s, 'hex')", key)
    return str(json.loads(text)["data"]["code"])


# -- polls


def test_s01_an_adapter_that_answers_at_once(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """One poll, one process, and the result is pinned; the same call again runs nothing."""
    path = wrong.write(tmp_path, "x", f"echo run >> {tmp_path}/runs; echo '{wrong.DONE}'")
    answer = scene.begin(function=X)
    serve_until(dsn, [Adapter(name="x", path=path)], lambda: scene.state(answer) == "completed_ok")
    again = scene.begin(function=X)
    assert (again["at"], again["status"], lines(tmp_path / "runs")) == ("pinned_hit", "ok", ["run"])
    assert (polls(scene, answer), leases(scene)) == ([("done", None)], 0)


def test_s06_the_newest_token_is_passed_on(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """Each poll gets the token of the last answer, whole, and the last poll ends the attempt."""
    script = f"""
token=$(sed -n 's/.*"token":"\\([^"]*\\)".*/\\1/p'); echo "${{token:--}}" >> {tmp_path}/tokens
[ "$token" = t3 ] && {{ echo '{wrong.DONE}'; exit; }}
case $token in t1) next=t2;; t2) next=t3;; *) next=t1;; esac
echo "{{\\"v\\":1,\\"status\\":\\"pending\\",\\"token\\":\\"$next\\",\\"poll_after_ms\\":1}}"
"""
    answer = scene.begin(function=X)
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", script))
    serve_until(dsn, [adapter], lambda: scene.state(answer) == "completed_ok")
    assert lines(tmp_path / "tokens") == ["-", "t1", "t2", "t3"]
    assert [each for each, _ in polls(scene, answer)] == ["pending"] * 3 + ["done"]


def test_a_failed_job_is_a_result(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """The short form of an error becomes a pinned result, which the same call gets without a run."""
    script = 'echo \'{"v":1,"status":"done","outcome":"error","error":{"message":"no such file"}}\''
    answer = scene.begin(function=X)
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", script))
    serve_until(dsn, [adapter], lambda: scene.state(answer) == "completed_error")
    assert scene.begin(function=X)["status"] == "error"


def test_s22_a_slow_adapter_delays_no_other(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """While a poll of one key goes on, another key is answered, and no transaction is open for the first."""
    slow = Adapter(name="x", path=wrong.write(tmp_path, "x", f"touch {tmp_path}/begun; exec sleep 600"))
    quick = Adapter(name="y", path=wrong.write(tmp_path, "y", f"echo '{wrong.DONE}'"))
    scene.begin(function=X)

    async def body(worker: AdapterWorker) -> None:
        await until((tmp_path / "begun").exists)
        answer = scene.begin(function=Y)
        await until(lambda: scene.state(answer) == "completed_ok")
        assert leases(scene) == 1
        open_since = scene.all(
            "select query from pg_stat_activity where application_name like 'pyengine%' "
            "and xact_start < now() - interval '0.5 seconds' and datname = current_database()"
        )
        assert open_since == []

    serve(dsn, [slow, quick], body, grace_s=0.0)


def test_s23_an_adapter_may_make_a_call_itself(scene: Scene, dsn: str, direct: str, tmp_path: Path) -> None:
    """A poll that calls another function and waits for it gets its result: nothing is locked meanwhile."""
    script = f"""
import json, time, psycopg
conn = psycopg.connect({direct!r}, autocommit=True)
def begin():
    return conn.execute(
        "select durable.call_begin('s', {Y!r}, array[durable.literal('2')])").fetchone()[0]
while (inner := begin())["at"] != "pinned_hit":
    time.sleep(0.05)
print(json.dumps({{"v": 1, "status": "done", "outcome": "ok", "result": inner["dag"]}}))
"""
    outer = Adapter(name="x", path=wrong.write(tmp_path, "x", script, sys.executable))
    inner = Adapter(name="y", path=wrong.write(tmp_path, "y", f"echo '{wrong.DONE}'"))
    answer = scene.begin(function=X)
    serve_until(dsn, [outer, inner], lambda: scene.state(answer) == "completed_ok")
    assert scene.begin(function=X)["dag"] == scene.begin([2], function=Y)["dag"]


def test_values_are_passed_on_if_they_are_wanted(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """With inline inputs the request has the values, tagged and in their order; otherwise only ids."""
    script = f"sed -n 's/.*\"values\":/values /p' >> {tmp_path}/seen; echo '{wrong.DONE}'"
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", script))
    for number, inline in ((1, True), (2, False)):
        answer = scene.begin([number, ["a"]], function=X)
        serve_until(
            dsn,
            [adapter],
            lambda answer=answer: scene.state(answer) == "completed_ok",
            inline_inputs=inline,
        )
    assert lines(tmp_path / "seen") == ['values [{"i64":1},{"list":[{"string":"a"}]}]}']


def test_no_more_processes_than_allowed(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """With room for two processes the third poll waits for one of them to end."""
    script = f"""
mkdir {tmp_path}/now.$$; ls -d {tmp_path}/now.* | wc -l >> {tmp_path}/counts
sleep 0.1; rmdir {tmp_path}/now.$$; echo '{wrong.DONE}'
"""
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", script))
    for number in range(8):
        scene.begin([number], function=X)
    serve_until(dsn, [adapter], lambda: scene.count("_pins") == 8, max_polls=2)
    assert max(map(int, lines(tmp_path / "counts"))) == 2


# -- failures


def test_s24_an_adapter_that_is_not_here_is_left_to_others(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """A worker without the program gives the attempt back uncounted, and another worker polls it."""
    answer = scene.begin(function=X)
    path = tmp_path / "x"

    async def body(worker: AdapterWorker) -> None:
        await until(lambda: not worker.adapters, "the release")
        await until(lambda: leases(scene) == 0)
        wrong.write(tmp_path, "x", f"echo '{wrong.DONE}'")
        async with AdapterWorker([ProgramExecutor([Adapter(name="x", path=str(path))])], dsn):
            await until(lambda: scene.state(answer) == "completed_ok")

    serve(dsn, [Adapter(name="x", path=str(path))], body)
    assert polls(scene, answer) == [("done", None)]


def test_s24_an_adapter_that_nobody_has_ends_the_attempt(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """After the grace an attempt that no worker serves is given up, and the next call starts another."""
    scene.one("select durable.set_setting('call_adapter_grace_ms', '100')")
    answer = scene.begin(function=X)
    other = Adapter(name="y", path=wrong.write(tmp_path, "y", "true"))

    async def body(worker: AdapterWorker) -> None:
        worker.sweep_every_s = 0.1
        await until(lambda: scene.state(answer) == "failed_terminal")

    serve(dsn, [other], body)
    assert error_code(scene, answer) == "adapter_not_found"
    assert scene.begin(function=X)["generation"] == 1


# what becomes of a wrong answer; test_adapter_process.py has every way to be wrong
@pytest.mark.parametrize(
    "name",
    [
        *("junk", "empty_token"),
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("null", "two_documents", "duplicate_key", "latin_1", "nul")
        ),
    ],
)
def test_s25_an_answer_against_the_contract_is_no_result(
    scene: Scene, dsn: str, tmp_path: Path, name: str
) -> None:
    """The attempt is given up with the head of stdout; nothing is pinned, and the next call runs again."""
    rule, script = wrong.ANSWERS[name]
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", f"echo run >> {tmp_path}/runs\n{script}"))
    answer = scene.begin(function=X)
    serve_until(dsn, [adapter], lambda: scene.state(answer) == "failed_terminal")
    assert error_code(scene, answer) == "adapter_protocol"
    error = scene.one("select error from durable._call_attempts")
    assert rule in error
    assert '"stdout"' in error
    again = scene.begin(function=X)
    assert (again["at"], again["generation"], scene.count("_pins")) == ("started", 1, 0)
    serve_until(dsn, [adapter], lambda: scene.state(again) == "failed_terminal")
    assert len(lines(tmp_path / "runs")) == 2


def test_s26_an_exit_code_is_tried_again(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """A valid answer that comes with exit code 3 is ignored, and the next poll counts."""
    script = f"""
echo '{wrong.DONE}'
[ -e {tmp_path}/second ] || {{ touch {tmp_path}/second; exit 3; }}
"""
    answer = scene.begin(function=X)
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", script))
    serve_until(dsn, [adapter], lambda: scene.state(answer) == "completed_ok")
    assert polls(scene, answer) == [("failed", "the adapter exited with 3"), ("done", None)]


def test_s27_an_adapter_that_hangs_is_ended(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """A time limit is a failure that is tried again; others are served meanwhile."""
    hangs = f"[ -e {tmp_path}/second ] && exec echo '{wrong.DONE}'; touch {tmp_path}/second; exec sleep 600"
    slow = Adapter(name="x", path=wrong.write(tmp_path, "x", hangs))
    quick = Adapter(name="y", path=wrong.write(tmp_path, "y", f"echo '{wrong.DONE}'"))
    answer, other = scene.begin(function=X), scene.begin(function=Y)
    serve_until(
        dsn,
        [slow, quick],
        lambda: scene.state(answer) == scene.state(other) == "completed_ok",
        time_s=0.5,
    )
    first, second = polls(scene, answer)
    assert (first[0], second) == ("failed", ("done", None))
    assert first[1] is not None
    assert "no answer within 0.5 s" in first[1]


def test_s29_a_throttled_backend_leaves_the_job_alone(
    scene: Scene, dsn: str, tmp_path: Path, batch: Adapter
) -> None:
    """While the backend asks to come later nothing is cached; the job goes on, and its result counts."""
    answer = scene.begin(function=X)

    async def body(worker: AdapterWorker) -> None:
        await until(lambda: len(lines(tmp_path / "polls")) >= 2)
        (tmp_path / "throttled").touch()
        (tmp_path / "finished").touch()
        await until(lambda: scene.one("select failures from durable._call_attempts") >= 2)
        await until(lambda: scene.state(answer) == "retry_wait")
        assert scene.count("_pins") == 0
        (tmp_path / "throttled").unlink()
        await until(lambda: scene.state(answer) == "completed_ok")

    serve(dsn, [batch], body)
    assert len(lines(tmp_path / "submits")) == 1


def test_s31_a_cancelled_job_is_cancelled_once(
    scene: Scene, dsn: str, tmp_path: Path, batch: Adapter
) -> None:
    """The last waiter cancels; the adapter is asked once to end the job, and its answer does not matter."""
    answer = scene.begin(function=X)

    async def body(worker: AdapterWorker) -> None:
        await until(lambda: len(lines(tmp_path / "polls")) >= 2)
        assert scene.one("select durable.call_cancel('s', decode(%s, 'hex'))", answer["node"]) == "cancelled"
        await until(lambda: lines(tmp_path / "cancels"))

    serve(dsn, [batch], body)
    serve_until(dsn, [batch], lambda: True)
    assert lines(tmp_path / "cancels") == [answer["execution_key"]]
    assert scene.state(answer) == "failed_terminal"


# -- waits


def test_s41_a_wake_polls_at_once(
    scene: Scene, dsn: str, tmp_path: Path, batch: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose next poll is an hour away is polled when its backend calls, and that poll is its last."""
    monkeypatch.setenv("BATCH_PAUSE_MS", "3600000")
    answer = scene.begin(function=X)

    async def body(worker: AdapterWorker) -> None:
        await until(lambda: polls(scene, answer))
        (tmp_path / "finished").touch()
        assert scene.one("select durable.call_wake(decode(%s, 'hex'))", answer["execution_key"])
        await until(lambda: scene.state(answer) == "completed_ok")

    serve(dsn, [batch], body)
    assert len(lines(tmp_path / "polls")) == 2


@pytest.mark.parametrize(("number", "due"), [(40, 10), pytest.param(10_000, 50, marks=pytest.mark.full)])
def test_s46_ten_thousand_pending_attempts_need_nothing(
    scene: Scene, dsn: str, tmp_path: Path, batch: Adapter, number: int, due: int
) -> None:
    """Between their polls 10,000 attempts have no process and no lease; those that are due are polled."""
    for first in range(0, number, 1_000):
        scene.one(
            "select count(durable.call_begin('s', %s, array[durable.literal(to_jsonb(n))])) "
            "from generate_series(%s::integer, %s) n",
            *(X, first + 1, min(first + 1_000, number)),
        )
    while documents := scene.lease(adapters=["x"], most=1_000):
        report = {"class": "pending", "token": "t", "poll_after_ms": 3_600_000}
        keyed = [
            report | {"execution_key": each["execution_key"], "version": each["version"]}
            for each in documents
        ]
        states = scene.all("select * from durable.call_reports_v1(%s)", json.dumps(keyed))
        assert {json.dumps(row[0]) for row in states} == {'{"state": "poll_adapter"}'}
    assert scene.count("_tasks where state = 'pending'") == number

    async def body(worker: AdapterWorker) -> None:
        for _ in range(10):
            assert (leases(scene), lines(tmp_path / "polls"), worker.running) == (0, [], 0)
            await asyncio.sleep(0.1)
        (tmp_path / "finished").touch()
        scene.one(
            "update durable._tasks t set retry_at = durable._now_ms() "
            "where id in (select id from durable._tasks order by id limit %s) returning 1",
            due,
        )
        await until(lambda: scene.count("_pins") == due)
        # the last pins are there before their worker has heard of it
        await until(lambda: (leases(scene), worker.running) == (0, 0))

    serve(dsn, [batch], body)
    assert len(lines(tmp_path / "polls")) == due


# -- stops, kills, lost connections


@pytest.fixture
def command(dsn: str, batch: Adapter) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts worker processes that serve the fake batch system; those that are left end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*options: str) -> subprocess.Popen[bytes]:
        words = ["--adapter", f"x={batch.path}", "--env", "BATCH", "--env", "BATCH_PAUSE_MS", *options]
        started.append(launch(dsn, "-m", "pyengine", "adapter", "worker", *words))
        return started[-1]

    yield begin
    for each in started:
        stop(each)


def wait(question: Callable[[], Any]) -> None:
    """Wait until something is true."""
    asyncio.run(until(question))


def test_sigterm_gives_leases_back(
    scene: Scene, dsn: str, tmp_path: Path, batch: Adapter, command: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A worker that is stopped ends a poll that does not end by itself, and gives its lease back at once."""
    (tmp_path / "stalled").touch()
    answer = scene.begin(function=X)
    worker = command("--grace", "0.2")
    wait(lambda: lines(tmp_path / "polls"))
    stop(worker)
    assert (worker.returncode, leases(scene), polls(scene, answer)) == (0, 0, [])
    assert scene.state(answer) == "poll_adapter"
    (tmp_path / "stalled").unlink()
    (tmp_path / "finished").touch()
    serve_until(dsn, [batch], lambda: scene.state(answer) == "completed_ok")


def test_a_stop_waits_for_polls_that_end(scene: Scene, dsn: str, tmp_path: Path) -> None:
    """A poll that ends within the grace is reported."""
    script = f"touch {tmp_path}/begun; sleep 0.5; echo '{wrong.DONE}'"
    answer = scene.begin(function=X)
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", script))
    serve_until(dsn, [adapter], (tmp_path / "begun").exists)
    assert scene.state(answer) == "completed_ok"


def test_s21_a_killed_worker_submits_no_second_job(
    scene: Scene, dsn: str, tmp_path: Path, batch: Adapter, command: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A worker is killed after its adapter has submitted; another one takes over, and there is one job."""
    scene.one("select durable.set_setting('lease_ttl_ms', '1000')")
    (tmp_path / "stalled").touch()
    answer = scene.begin(function=X)
    worker = command()
    wait(lambda: lines(tmp_path / "polls"))
    kill(worker)
    (tmp_path / "stalled").unlink()
    (tmp_path / "crash_after_submit").touch()
    (tmp_path / "finished").touch()
    serve_until(dsn, [batch], lambda: scene.state(answer) == "completed_ok")
    assert len(lines(tmp_path / "submits")) == 1
    assert len(lines(tmp_path / "polls")) == 3


def test_an_adapter_that_kills_its_worker_is_given_up(
    scene: Scene, dsn: str, tmp_path: Path, command: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Each worker that is lost during a poll uses the budget: the last one reports and does not poll."""
    scene.one("select durable.set_setting('lease_ttl_ms', '1000')")
    scene.one("select durable.set_setting('call_backoff_max_ms', '100')")
    path = wrong.write(tmp_path, "killer", f"echo run >> {tmp_path}/runs; kill -9 $PPID")
    answer = scene.begin(function="dml+exec://killer/f", request={"retries": 1})
    for number in range(1, 3):
        worker = command("--adapter", f"killer={path}")
        wait(lambda number=number: len(lines(tmp_path / "runs")) == number)
        worker.wait(60)
    serve_until(dsn, [Adapter(name="killer", path=path)], lambda: scene.state(answer) == "failed_terminal")
    assert lines(tmp_path / "runs") == ["run"] * 2
    assert error_code(scene, answer) == "retry_budget_exhausted"
    message = "2 workers in a row were lost while they polled it"
    assert polls(scene, answer) == [("failed", message)]


def test_a_document_that_cannot_be_read_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    """It is left alone and logged, and the attempts beside it are leased."""
    key = "ab" * 32
    names = {"node": key, "function": X, "inputs": [], "execution_key": key, "execution_uuid": "u"}
    good = names | {"adapter": "x", "version": 1, "phase": "poll_adapter"}

    class Pool:
        async def run(self, *_: Any) -> str:
            return json.dumps([None, {"adapter": "x"}, good | {"node": 5}, good])

    attempts = DatabaseAttempts(cast("ConnectionPool", Pool()), "w", 1000)
    (leased,) = asyncio.run(attempts.lease(["x"], 4))
    assert leased.key == key
    assert caplog.text.count("cannot be read") == 3


def test_a_lost_connection_is_replaced(scene: Scene, dsn: str, tmp_path: Path, batch: Adapter) -> None:
    """A worker whose sessions are ended by the server reports with new ones, and goes on."""
    answer = scene.begin(function=X)

    async def body(worker: AdapterWorker) -> None:
        for _ in range(3):
            seen = len(lines(tmp_path / "polls"))
            scene.one(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where application_name like 'pyengine%' and datname = current_database()"
            )
            await until(lambda seen=seen: len(lines(tmp_path / "polls")) > seen + 1)
        (tmp_path / "finished").touch()
        await until(lambda: scene.state(answer) == "completed_ok")

    serve(dsn, [batch], body)


@pytest.mark.parametrize(("attempts", "kills"), [(8, 2), pytest.param(40, 6, marks=pytest.mark.full)])
def test_s38_workers_that_are_killed_at_random(
    scene: Scene,
    tmp_path: Path,
    command: Callable[..., subprocess.Popen[bytes]],
    seed: int,
    attempts: int,
    kills: int,
) -> None:
    """Two worker processes are killed again and again: every attempt ends, with one job and one result."""
    chance = random.Random(seed)
    scene.one("select durable.set_setting('lease_ttl_ms', '1000')")
    answers = [scene.begin([number], function=X) for number in range(attempts)]
    workers = [command(), command()]
    for number in range(kills):
        seen = len(lines(tmp_path / "polls"))
        wait(lambda seen=seen: len(lines(tmp_path / "polls")) >= seen + chance.randrange(1, 12))
        if number == kills // 2:
            (tmp_path / "finished").touch()
        kill(workers.pop(0))
        workers.append(command())
    wait(lambda: all(scene.state(each) == "completed_ok" for each in answers))
    # the file is the job: an adapter that is killed right after making it writes no line
    assert len(list((tmp_path / "jobs").iterdir())) == attempts
    assert len(set(lines(tmp_path / "submits"))) == len(lines(tmp_path / "submits"))
    assert scene.count("_pins") == attempts


# what a worker does beside its polls, and the method in which it fails
PARTS: dict[str, tuple[type, str]] = {
    "leasing": (AdapterWorker, "_lease"),
    "leases": (AdapterWorker, "_renew"),
    "the sweep": (AdapterWorker, "_sweep"),
    "ticks": (Ticker, "_tick"),
    "hints": (Listener, "_send_hints"),
}


@pytest.mark.session("listens")
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_ends_the_worker(
    dsn: str,
    batch: Adapter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    """The block of the worker fails with its error, which is logged once; the worker stops."""
    break_part(monkeypatch, *PARTS[part])

    async def body(worker: AdapterWorker) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Fault):
        serve(dsn, [batch], body)
    assert caplog.text.count("cannot go on; it stops") == 1
    assert "did not stop in an orderly way" not in caplog.text
