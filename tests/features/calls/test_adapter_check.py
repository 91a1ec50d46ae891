"""``pyengine adapter check``: it passes correct adapters and names the rule that a wrong one breaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pyengine.doors.cli.root import run
from pyengine.features.calls.adapter_check import CHECKS
from tests.features.calls.adapters import wrong

pytestmark = pytest.mark.usefixtures("ends_processes")
BATCH = Path(__file__).parent / "adapters" / "batch.py"

# the second poll is without the first one's token; from then on each gives the next token
COUNTS = """
token=$(sed -n 's/.*"token":"\\([0-9]*\\)".*/\\1/p')
[ "${token:-0}" -lt 3 ] || { echo '%s'; exit; }
echo "{\\"v\\":1,\\"status\\":\\"pending\\",\\"token\\":\\"$((${token:-0} + 1))\\",\\"poll_after_ms\\":1}"
"""


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Run the command: its exit code and its document."""
    code = run(["adapter", "check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def broken(document: dict[str, Any]) -> list[tuple[str, str]]:
    """The checks that found something, with the rules."""
    return [(one["check"], one["rule"]) for one in document["findings"] if not one["ok"]]


@pytest.mark.parametrize("script", [f"echo '{wrong.DONE}'", COUNTS % wrong.DONE])
def test_s50_a_correct_adapter_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    """An adapter of a few lines of shell keeps the whole contract, with a token or without."""
    code, document = check(capsys, f"x={wrong.write(tmp_path, 'x', script)}")
    assert (code, document["ok"]) == (0, True), document
    seen = {one["check"] for one in document["findings"]}
    assert seen == set(CHECKS) - ({"token"} if "token" not in script else set())


# one way to break each rule; test_adapter_process.py has the others by default too
BREAKS = {name: rule for name, (rule, _) in wrong.ANSWERS.items()}
BREAKS |= {name: rule for name, (_, rule, _) in wrong.EXITS.items()}
FIRST = set({rule: name for name, rule in reversed(BREAKS.items())}.values())
WRONG = [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.full]) for name in BREAKS]


@pytest.mark.parametrize("name", WRONG)
def test_s50_a_wrong_adapter_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """For each wrong adapter the check ends with 1 and names the broken rule."""
    (rule, script), check_name = wrong.ANSWERS.get(name, ("", "")), "answer"
    if name in wrong.EXITS:
        _, rule, script = wrong.EXITS[name]
        check_name = "program" if rule == "adapter_broken" else "answer"
    path = wrong.write(tmp_path, "x", script)
    code, document = check(capsys, f"x={path}", "--time-limit", "1")
    assert (code, document["ok"], broken(document)[0]) == (1, False, (check_name, rule)), document


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            f"""grep -q '"token":null' && {{ echo '{wrong.PENDING}'; exit; }}; echo again""",
            ("token", "json"),
        ),
        (
            f"""[ -e "$0.ran" ] && exit 3; touch "$0.ran"; echo '{wrong.DONE}'""",
            ("again", "adapter_exit"),
        ),
        (
            """printf '{"v":1,"status":"done","outcome":"ok","value":{"i64":1%s}}' "$(date +%N)" """,
            ("same_result", "same_result"),
        ),
        (f"sleep 600 & echo '{wrong.DONE}'", ("session", "session")),
        (
            f"""grep -q '"op":"cancel"' && exec sleep 600; echo '{wrong.DONE}'""",
            ("cancel", "adapter_timeout"),
        ),
    ],
)
def test_s50_later_polls_are_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, found: tuple[str, str]
) -> None:
    """An adapter whose first poll is right may break the contract at a later one, or by what it leaves."""
    path = wrong.write(tmp_path, "x", script)
    code, document = check(capsys, f"x={path}", "--time-limit", "1")
    assert (code, broken(document)) == (1, [found]), document


LATER = '{"v":1,"status":"failed","retryable":true,"error":{"message":"throttled"}}'


@pytest.mark.parametrize("later", ["exit 75", f"echo '{LATER}'; exit"], ids=["exit 75", "retryable"])
def test_an_adapter_may_ask_for_a_later_poll(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """It is polled again; one that asks each time was not tested, and broke nothing."""
    monkeypatch.setattr("pyengine.features.calls.adapter_check._RETRY_S", 0.0)
    busy = f"""[ -e "$0.ran" ] && {{ echo '{wrong.DONE}'; exit; }}; touch "$0.ran"; {later}"""
    code, document = check(capsys, f"x={wrong.write(tmp_path, 'x', busy)}")
    assert (code, document["ok"]) == (0, True), document
    path = wrong.write(tmp_path, "y", later)
    code, document = check(capsys, f"y={path}")
    assert (code, document["ok"]) == (1, False)
    assert [(one["check"], one["tested"]) for one in document["findings"] if not one["ok"]] == [
        ("answer", False)
    ]
    assert run(["adapter", "check", f"y={path}"]) == 1
    told = capsys.readouterr()
    assert "not tested" in told.out and "BROKEN" not in told.out
    assert "could not be tested now" in told.err and "is broken" not in told.err


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ('"value":5', "a value is an object with its type"),
        ('"value":{"int":5}', "is no int"),
        ('"value":{"list":[{"i64":1},{"i64":true}]}', "$[1]: True is no i64"),
        (f'"result":"{"ab" * 32}","objects":[{{"kind":"dag"}}]', "'scalar'"),
    ],
)
def test_s50_a_value_against_the_contract_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, detail: str
) -> None:
    """A value without its type, or objects that are none: the rule is found without a database."""
    document = f'{{"v":1,"status":"done","outcome":"ok",{answer}}}'
    path = wrong.write(tmp_path, "x", f"echo '{document}'")
    code, found = check(capsys, f"x={path}")
    assert (code, broken(found)) == (1, [("answer", "value")]), found
    assert detail in found["findings"][0]["detail"], found


def test_s50_the_fake_batch_system_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter that other tests rely on keeps the contract, and submits one job for the repeated poll."""
    monkeypatch.setenv("BATCH", str(tmp_path))
    program = wrong.write(tmp_path, "batch", f"exec {sys.executable} {BATCH}")
    code, document = check(capsys, f"batch={program}", "--env", "BATCH", "--wait", "0.2")
    assert (code, document["ok"]) == (0, True), document
    assert len((tmp_path / "submits").read_text().splitlines()) == 1
    (tmp_path / "finished").touch()
    code, document = check(capsys, f"batch={program}", "--env", "BATCH")
    assert (code, document["ok"]) == (0, True), document
    (tmp_path / "throttled").touch()
    code, document = check(capsys, f"batch={program}", "--env", "BATCH")
    assert broken(document) == [("answer", "adapter_exit")]
    assert "stderr: the system is busy" in document["findings"][0]["detail"]


def test_s24_a_program_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is on no PATH, and a name that is none."""
    code, document = check(capsys, "no-such-program-at-all")
    assert (code, broken(document)) == (1, [("program", "adapter_not_found")])
    assert run(["adapter", "check", "../../bin/sh"]) == 2
    assert "no name of an adapter" in capsys.readouterr().err


def test_the_check_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people there is a line for each check, with what was seen."""
    code = run(["adapter", "check", f"x={wrong.write(tmp_path, 'x', 'echo job 7')}"])
    printed = capsys.readouterr()
    assert (code, "BROKEN" in printed.out, "stdout began with 'job 7" in printed.out) == (1, True, True)
    assert "the contract is broken: json" in printed.err
