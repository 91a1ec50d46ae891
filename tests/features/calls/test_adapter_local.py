"""The adapter `local`: jobs of this machine, each started once, that survive the workers that poll."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyengine.doors.cli.root import run
from pyengine.features.calls import adapter_process
from pyengine.features.calls.adapter_process import Adapter
from pyengine.features.calls.contract import Answer, Done, Failed, Pending, Request
from tests.features.calls.adapters import wrong
from tests.support.tree import ROOT

pytestmark = pytest.mark.usefixtures("ends_processes")
KEY = "0123456789abcdef" * 4
PASSED = ("DURABLE_LOCAL_PATH", "DURABLE_LOCAL_STATE")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs that may be run; jobs go into a folder beside it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("DURABLE_LOCAL_PATH", str(folder))
    monkeypatch.setenv("DURABLE_LOCAL_STATE", str(tmp_path / "state"))
    return folder


def request(uri: str, key: str = KEY, **more: Any) -> Request:
    """A request for the first poll of a function of the adapter."""
    given = {"node": key, "inputs": [], "execution_key": key, "execution_uuid": "u"} | more
    return Request(function=f"dml+exec://local/{uri}", **given)


def poll(given: Request) -> Answer:
    """The answer of one poll."""
    return asyncio.run(adapter_process.poll(Adapter(name="local"), given, passed=PASSED)).answer


def poll_until(given: Request, enough: Callable[[Answer], bool]) -> Answer:
    """Poll with the newest token until the answer is the wanted one."""
    until_s = time.monotonic() + 60
    while not enough(answer := poll(given)):
        assert time.monotonic() < until_s, answer
        assert isinstance(answer, Pending), answer
        given = msgspec.structs.replace(given, token=answer.token)
        time.sleep(0.02)
    return answer


def finish(given: Request) -> Answer:
    """Poll until the job has ended."""
    return poll_until(given, lambda answer: not isinstance(answer, Pending))


def failure(given: Request) -> str:
    """Why a poll fails, and whether a retry may help."""
    answer = poll(given)
    assert isinstance(answer, Failed), answer
    return f"{answer.error['code']} {answer.retryable}"


@pytest.mark.parametrize(
    ("script", "uri", "value"),
    [
        ("echo hello", "x", {"string": "hello"}),
        ('printf "$1 and $2"', "x?arg=a%20b&arg=%26", {"string": "a b and &"}),
        ("cat inputs/0 inputs/1 inputs/2", "x", {"string": 'é[1, {"k": 2.5}]\x01\x02'}),
        ("wc -l < inputs/0", "x?output=json", {"i64": 0}),
        (
            "echo '[1, 1.0, true, null, \"x\", {}]'",
            "x?output=json",
            {
                "list": [
                    {"i64": 1},
                    {"f64": "1.0"},
                    {"bool": True},
                    {"null": None},
                    {"string": "x"},
                    {"map": []},
                ]
            },
        ),
        ("echo 1e16", "x?output=json", {"f64": "1e+16"}),
        ('echo \'{"set": [{"i64": 1}]}\'', "x?output=tagged", {"set": [{"i64": 1}]}),
    ],
)
def test_the_output_of_a_program_is_the_result(programs: Path, script: str, uri: str, value: Any) -> None:
    """A program gets its arguments and inputs, and its output becomes a value with its type."""
    wrong.write(programs, "x", script)
    values = [
        {"string": "é"},
        {"list": [{"i64": 1}, {"map": [[{"string": "k"}, {"f64": "2.5"}]]}]},
        {"bytes": "AQI="},
    ]
    assert finish(request(uri, values=values)) == Done("ok", value=value)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("script", "uri", "message", "data"),
    [
        ("echo so far; echo oh no >&2; exit 3", "x", "exited with 3", {"exit_code": 3, "stderr": "oh no\n"}),
        ("kill -9 $$", "x", "ended by signal 9", {"exit_code": -9, "stderr": ""}),
        ("echo '{'", "x?output=json", "printed no json", {}),
        ("echo NaN", "x?output=json", "printed no json: NaN", {}),
        ("echo 9223372036854775808", "x?output=json", "more than 64 bits", {}),
        ("echo 1e999", "x?output=json", "outside the range of f64", {}),
        ("echo '[-1e999]'", "x?output=json", "outside the range of f64", {}),
        ("echo '{\"f64\": 1e999}'", "x?output=tagged", "outside the range of f64", {}),
        ("""printf '"\\\\ud800"'""", "x?output=json", "printed no json", {}),
        ("""printf '{"string": "\\\\ud800"}'""", "x?output=tagged", "printed no tagged", {}),
        ("""printf '{"string": "\\\\u0000"}'""", "x?output=tagged", "a text has no NUL", {}),
        ('echo \'{"a":1,"a":2}\'', "x?output=json", "a key twice", {}),
        ('echo \'{"i64":1,"i64":2}\'', "x?output=tagged", "a key twice", {}),
        ("echo '{\"i64\": 18446744073709551616}'", "x?output=tagged", "more than 64 bits", {}),
        ("printf '[%.0s' $(seq 60)", "x?output=json", "printed no json", {}),
        ("printf '[%.0s' $(seq 50); printf ']%.0s' $(seq 50)", "x?output=json", "deeper than 100 levels", {}),
        ("yes [ | head -200000", "x?output=json", "printed no json", {}),
        ("printf '\\377'", "x", "printed no text", {}),
        ("printf 'a\\000'", "x", "a text has no NUL", {}),
        ("head -c 600000 /dev/zero", "x", "print a URI instead", {}),
    ],
)
def test_a_job_that_fails_is_a_result(
    programs: Path, script: str, uri: str, message: str, data: dict[str, Any]
) -> None:
    """An exit code, a signal or an unreadable output is the outcome of the job, not a failed poll."""
    wrong.write(programs, "x", script)
    answer = finish(request(uri))
    assert isinstance(answer, Done)
    assert answer.error is not None
    assert (answer.outcome, message in answer.error["message"], answer.error["data"]) == ("error", True, data)


def test_only_programs_of_the_folders_are_run(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path leads out of the folders, and without folders nothing is run."""
    wrong.write(tmp_path, "outside", "echo out")
    (programs / "link").symlink_to(tmp_path / "outside")
    (programs / "data").write_text("no program")
    for uri in (
        "../outside",
        "%2e%2e/outside",
        "link",
        "data",
        "nothing",
        "",
        f"/{tmp_path}/outside",
        "bin/sh",
    ):
        assert failure(request(uri)) == "no_program False", uri
    for uri in ("x?output=yaml", "x%00", "x?arg=%00"):
        assert failure(request(uri)) == "adapter_exit False", uri
    monkeypatch.delenv("DURABLE_LOCAL_PATH")
    assert failure(request("x")) == "adapter_exit False"


def test_inputs_without_values_start_nothing(programs: Path, tmp_path: Path) -> None:
    """A result that was computed without its inputs would be pinned under them."""
    wrong.write(programs, "x", f"touch {tmp_path}/ran")
    given = {"inputs": [KEY, KEY]}
    assert failure(request("x", **given)) == "adapter_exit False"
    assert failure(request("x", **given, values=[{"i64": 1}])) == "adapter_exit False"
    assert not (tmp_path / "ran").exists()


def test_a_job_is_started_once(programs: Path, tmp_path: Path) -> None:
    """Many polls at once, without a token, start one job, and all get its result."""
    wrong.write(programs, "x", f"echo run >> {tmp_path}/runs; sleep 0.5; echo done")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(finish, [request("x")] * 8))
    assert answers == [Done("ok", value={"string": "done"})] * 8
    assert (tmp_path / "runs").read_text() == "run\n"
    assert finish(request("x")) == answers[0]


def test_a_job_survives_the_poll_and_names_itself(programs: Path, tmp_path: Path) -> None:
    """The job runs in a session of its own; the token names machine, folder and process."""
    wrong.write(programs, "x", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; ps -o sid= -p $$")
    answer = poll(request("x"))
    assert isinstance(answer, Pending)
    token = json.loads(answer.token)
    assert token["job"].endswith(KEY)
    assert os.getsid(token["pid"]) == token["pid"]
    (tmp_path / "go").touch()
    done = finish(request("x", token=answer.token))
    assert isinstance(done, Done)
    assert int(done.value["string"]) == token["pid"]


def test_another_machine_leaves_the_job_alone(programs: Path) -> None:
    """A poll that lands on another machine keeps the token and starts nothing."""
    token = json.dumps({"host": "elsewhere", "job": "/x", "pid": 1})
    answer = poll(request("x", token=token))
    assert isinstance(answer, Pending)
    assert (answer.token, answer.message) == (token, "the job is on elsewhere")


def test_a_lost_job_is_given_up(programs: Path) -> None:
    """A job that was killed with its supervisor has no exit code: the attempt ends without a result."""
    wrong.write(programs, "x", "exec sleep 600")
    answer = poll_until(request("x"), lambda answer: isinstance(answer, Pending) and "pid" in answer.token)
    assert isinstance(answer, Pending)
    os.killpg(json.loads(answer.token)["pid"], signal.SIGKILL)
    lost = finish(request("x", token=answer.token))
    assert isinstance(lost, Failed)
    assert (lost.retryable, lost.error["code"]) == (False, "job_lost")


@pytest.mark.sample(1)
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_cancellation_ends_the_job(programs: Path, tmp_path: Path, trap: str) -> None:
    """The whole group gets SIGTERM, and SIGKILL if it does not end; another cancellation finds nothing."""
    wrong.write(programs, "x", f"{trap}echo $$ > {tmp_path}/pid; while :; do sleep 1; done")
    answer = poll_until(
        request("x"), lambda _: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != ""
    )
    assert isinstance(answer, Pending)
    for _ in range(2):
        poll(request("x", op="cancel", token=answer.token))
        assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cmdline").exists() or (
            Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat").read_text().rpartition(") ")[2][0]
            == "Z"
        )
    poll(request("x", key="f" * 64, op="cancel"))


def test_s50_local_keeps_the_contract(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped adapter passes the check, at once and with a job that takes a while."""
    wrong.write(programs, "x", 'sleep "$1"; cat inputs/0')
    for pause in ("0", "0.4"):
        function = f"dml+exec://local/x?arg={pause}"
        passed = [word for name in PASSED for word in ("--env", name)]
        words = ["--function", function, "--value", '{"string": "a"}', *passed]
        code = run(["adapter", "check", "local", "--json", *words])
        document = json.loads(capsys.readouterr().out)
        assert code == 0, document


def test_old_jobs_are_removed(programs: Path, tmp_path: Path) -> None:
    """The files of a job that ended a week ago go when another job starts."""
    wrong.write(programs, "x", "true")
    finish(request("x"))
    ended = tmp_path / "state" / KEY / "exit"
    os.utime(ended, (time.time() - 8 * 86400,) * 2)
    finish(request("x", key="a" * 64))
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["a" * 64]


def test_it_is_a_command() -> None:
    """The package installs it as a program that other adapters can wrap."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["pyengine-adapter-local"].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "usage: pyengine-adapter-local URI" in done.stderr) == (64, True)
