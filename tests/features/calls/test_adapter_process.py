"""One poll of an adapter, with real processes: its end, its limits, its files, its environment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyengine.errors import InvalidRequest
from pyengine.features.calls import adapter_process
from pyengine.features.calls.adapter_process import Adapter, Limits
from pyengine.features.calls.contract import CannotRun, Done, Executed, Failed, Pending, Request
from tests.features.calls.adapters import wrong

pytestmark = pytest.mark.usefixtures("ends_processes")
ID = "0123456789abcdef" * 4
REQUEST = Request(
    node=ID, function="dml+exec://x/y?z=1%20", inputs=[ID], execution_key=ID, execution_uuid="some-uuid"
)
SHORT = Limits(time_s=0.5, grace_s=0.5)


def run(path: str, request: Request = REQUEST, **options: Any) -> Executed:
    """Poll the program at a path once."""
    return asyncio.run(adapter_process.poll(Adapter(name="x", path=path), request, **options))


def failure(poll: Executed) -> dict[str, Any]:
    """The error of a poll that failed."""
    assert isinstance(poll.answer, Failed), poll.answer
    return poll.answer.error


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether a process ends now."""
    until_s = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize("name", wrong.ANSWERS)
def test_s25_exit_0_with_no_answer_breaks_the_contract(tmp_path: Path, name: str) -> None:
    """Exit code 0 promises an answer: anything else names the broken rule, and no retry helps."""
    rule, script = wrong.ANSWERS[name]
    poll = run(wrong.write(tmp_path, "x", script))
    error = failure(poll)
    assert (error["code"], error["rule"]) == ("adapter_protocol", rule), error
    assert isinstance(poll.answer, Failed)
    assert not poll.answer.retryable
    assert ("stdout" in error) == (name not in ("nothing", "far_too_chatty"))
    assert json.loads(json.dumps(error)) == error
    assert "\0" not in json.dumps(error, ensure_ascii=False)


@pytest.mark.parametrize("name", wrong.EXITS)
def test_s26_an_exit_code_is_no_answer(tmp_path: Path, name: str) -> None:
    """A poll that does not end with 0 fails, whatever it printed; most exit codes are transient."""
    retryable, code, script = wrong.EXITS[name]
    poll = run(wrong.write(tmp_path, "x", script), limits=SHORT)
    assert (failure(poll)["code"], poll.answer) == (code, Failed(retryable, failure(poll)))


def test_s27_a_time_limit_ends_the_process_group(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed, and its children with it."""
    script = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; echo begun >&2; wait; wait"
    poll = run(wrong.write(tmp_path, "x", script), limits=SHORT)
    assert (failure(poll)["code"], poll.stderr, poll.exit_code) == ("adapter_timeout", "begun\n", -9)
    assert gone(int((tmp_path / "child").read_text()))


def test_s27_a_grandchild_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """The grace is for the whole group, not only for the adapter, which here ends at once."""
    script = f"(trap '' TERM; echo $$ >&2; exec sleep 600) & echo $! > {tmp_path}/child; wait"
    poll = run(wrong.write(tmp_path, "x", script), limits=SHORT)
    assert (failure(poll)["code"], poll.exit_code) == ("adapter_timeout", -signal.SIGTERM)
    assert gone(int((tmp_path / "child").read_text()))


def test_s28_a_poll_ends_with_its_adapter(tmp_path: Path) -> None:
    """A child that has stdout still open delays no poll, and lives on."""
    script = f"setsid sleep 600 & echo $! > {tmp_path}/child; echo '{wrong.PENDING}'"
    began_s = time.monotonic()
    poll = run(wrong.write(tmp_path, "x", script))
    child = int((tmp_path / "child").read_text())
    assert (poll.answer, alive(child)) == (Pending("t"), True)
    assert time.monotonic() - began_s < 300
    os.kill(child, signal.SIGKILL)


def test_a_job_in_its_own_session_survives_the_time_limit(tmp_path: Path) -> None:
    """The time limit ends the poll and not the work, if the work has a session of its own."""
    script = f"setsid sleep 600 & echo $! > {tmp_path}/child; sleep 600"
    assert failure(run(wrong.write(tmp_path, "x", script), limits=SHORT))["code"] == "adapter_timeout"
    child = int((tmp_path / "child").read_text())
    assert alive(child)
    os.kill(child, signal.SIGKILL)


def test_a_cancelled_poll_leaves_no_process(tmp_path: Path) -> None:
    """A worker that stops ends the adapters that it runs."""
    path = wrong.write(tmp_path, "x", f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1; done")

    async def main() -> None:
        poll = asyncio.create_task(adapter_process.poll(Adapter(name="x", path=path), REQUEST))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll

    asyncio.run(main())
    assert gone(int((tmp_path / "pid").read_text()))


def test_the_adapter_gets_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URI is the only argument, stdin the document, the folder empty, the environment a short list."""
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    script = f"""
import json, os, sys
seen = dict(argv=sys.argv[1:], stdin=json.load(sys.stdin), env=dict(os.environ), files=os.listdir(),
            session=os.getsid(0) == os.getpid(), fds=sorted(os.listdir("/proc/self/fd")))
json.dump(seen, open({str(tmp_path / "seen")!r}, "w"))
print({wrong.PENDING!r})
"""
    poll = run(wrong.write(tmp_path, "x", script, sys.executable), passed=("AWS_REGION", "NO_SUCH"))
    assert poll.answer == Pending("t")
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["argv"] == ["dml+exec://x/y?z=1%20"]
    assert seen["stdin"] == json.loads(REQUEST.document())
    assert (seen["files"], seen["session"]) == ([], True)
    assert len(seen["fds"]) == 4  # the last one is of the list itself
    own = {key: value for key, value in seen["env"].items() if key.startswith("DURABLE_")}
    assert own == {
        "DURABLE_EXECUTION_KEY": ID,
        "DURABLE_EXECUTION_UUID": "some-uuid",
        "DURABLE_PROTOCOL": "1",
    }
    others = set(seen["env"]) - set(own)
    assert others - {"LC_CTYPE", "PWD", "_", "SHLVL"} <= {*adapter_process.ENVIRONMENT, "AWS_REGION"}
    assert {"PATH", "AWS_REGION"} <= others


def test_an_adapter_that_reads_no_stdin_is_not_disturbed(tmp_path: Path) -> None:
    """A large request needs no reader."""
    request = Request(
        node=ID, function="f", inputs=[ID] * 10_000, execution_key=ID, execution_uuid="u", token="t"
    )
    assert run(wrong.write(tmp_path, "x", f"echo '{wrong.PENDING}'"), request).answer == Pending("t")


def test_the_end_of_stderr_is_stored(tmp_path: Path) -> None:
    """stderr is a log: its last 64 KiB, readable whatever bytes are in it, and without any meaning."""
    script = f"head -c 200000 /dev/zero | tr '\\0' x >&2; printf 'e\\000n\\377d' >&2; echo '{wrong.DONE}'"
    poll = run(wrong.write(tmp_path, "x", script))
    assert isinstance(poll.answer, Done)
    assert poll.stderr.endswith("xxe\\x00n\\xffd")
    assert 65_500 < len(poll.stderr) < 65_600


@pytest.mark.parametrize(
    ("interpreter", "mode", "message"),
    [
        ("/no/such/interpreter", 0o755, "its interpreter does not exist"),
        ("/bin/sh", 0o644, "Permission denied"),
    ],
)
def test_a_program_that_cannot_be_executed_is_broken(
    tmp_path: Path, interpreter: str, mode: int, message: str
) -> None:
    """A missing interpreter or a missing right is the program's fault, so no retry helps."""
    path = wrong.write(tmp_path, "x", "true", interpreter)
    Path(path).chmod(mode)
    poll = run(path)
    assert (poll.answer, failure(poll)["code"]) == (Failed(False, failure(poll)), "adapter_broken")
    assert message in failure(poll)["message"]


def test_a_program_of_another_format_is_broken(tmp_path: Path) -> None:
    """Without a first line that names an interpreter the system cannot execute a text."""
    path = tmp_path / "x"
    path.write_text("echo hello\n")
    path.chmod(0o755)
    assert "Exec format error" in failure(run(str(path)))["message"]


def test_s24_a_program_that_is_not_here_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this worker does not find another one may find: nothing is reported."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRun, match="no program batch on the PATH"):
        asyncio.run(adapter_process.poll(Adapter(name="batch"), REQUEST))
    with pytest.raises(CannotRun, match="does not exist"):
        run("/no/such/program")
    wrong.write(tmp_path, "batch", f"echo '{wrong.PENDING}'")
    assert asyncio.run(adapter_process.poll(Adapter(name="batch"), REQUEST)).answer == Pending("t")


@pytest.mark.parametrize("text", ["", "../x", "x=bin/y", "x=", "Batch", "x y"])
def test_a_wrong_name_or_path_is_refused(text: str) -> None:
    """A worker serves names that are no paths, and programs whose path is absolute."""
    with pytest.raises(InvalidRequest):
        Adapter.parse(text)


def test_an_adapter_is_a_name_or_a_name_with_a_path() -> None:
    """``slurm=/opt/bin/x`` names a program that need not be called like the adapter."""
    assert Adapter.parse("batch") == Adapter(name="batch")
    assert Adapter.parse("slurm=/opt/bin/x=y") == Adapter(name="slurm", path="/opt/bin/x=y")


def test_s22_polls_run_beside_each_other(tmp_path: Path) -> None:
    """A slow adapter delays no other: both are begun before one of them ends."""
    meet = f"""
touch {tmp_path}/$DURABLE_EXECUTION_UUID
while [ ! -e {tmp_path}/a ] || [ ! -e {tmp_path}/b ]; do sleep 0.01; done
echo '{wrong.PENDING}'
"""
    adapter = Adapter(name="x", path=wrong.write(tmp_path, "x", meet))

    async def main() -> list[Executed]:
        requests = [
            Request(node=ID, function="f", inputs=[], execution_key=ID, execution_uuid=name) for name in "ab"
        ]
        return await asyncio.gather(*(adapter_process.poll(adapter, each) for each in requests))

    assert [poll.answer for poll in asyncio.run(main())] == [Pending("t")] * 2
