"""The contract as text: what an answer may be, what exit codes mean, which names adapters have."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from pyengine.errors import InvalidRequest
from pyengine.features.calls import contract
from pyengine.features.calls.contract import (
    Done,
    Failed,
    Pending,
    ProtocolError,
    Request,
    exit_answer,
    read_answer,
)
from tests.features.calls.adapters import wrong

ID = "0123456789abcdef" * 4


def answer(**document: Any) -> bytes:
    """An answer of version 1."""
    return json.dumps({"v": 1} | document).encode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(status="pending", token="t"), Pending("t")),
        (
            answer(status="pending", token="t", poll_after_ms=0, message="queued", progress=0.5),
            Pending("t", 0, "queued", 0.5),
        ),
        (answer(status="pending", token="é\U0001f600"), Pending("é\U0001f600")),
        (answer(status="done", outcome="ok", result=ID), Done("ok", result=ID)),
        (answer(status="done", outcome="error", result=ID), Done("error", result=ID)),
        (
            answer(status="done", outcome="ok", result=ID, objects=[{"kind": "dag"}]),
            Done("ok", result=ID, objects=[{"kind": "dag"}]),
        ),
        (answer(status="done", outcome="ok", value={"i64": "1"}), Done("ok", value={"i64": "1"})),
        (answer(status="done", outcome="ok", value=None), Done("ok", value=None)),
        (
            answer(status="done", outcome="error", error={"message": "no", "stack": [{"line": "x"}]}),
            Done("error", error={"message": "no", "stack": [{"line": "x"}]}),
        ),
        (
            answer(status="failed", retryable=True, error={"code": "throttled", "message": "later"}),
            Failed(True, {"code": "throttled", "message": "later"}),
        ),
        (
            answer(status="failed", retryable=False, error={"message": "never"}),
            Failed(False, {"code": "adapter_failed", "message": "never"}),
        ),
    ],
)
def test_a_valid_answer_is_read(given: bytes, expected: contract.Answer) -> None:
    """Each form of an answer becomes its record; white space and keys of later versions do not matter."""
    later = given[:-1] + b', "of_a_later_version": 1}'
    for stdout in (given, b"\n " + given + b"\r\n\n", later):
        assert exit_answer(0, stdout) == expected


def test_a_large_answer_needs_objects() -> None:
    """One mebibyte is the limit, sixteen with objects, and the last byte counts."""
    stdout = answer(status="done", outcome="ok", value="x")
    longest = stdout + b" " * (contract.STDOUT_LIMIT - len(stdout))
    assert read_answer(longest) == Done("ok", value="x")
    with pytest.raises(ProtocolError, match=r"1 MiB.*1048577 bytes"):
        read_answer(longest + b" ")
    stdout = answer(status="done", outcome="ok", result=ID, objects=[])
    longest = stdout + b" " * (contract.STDOUT_LIMIT_WITH_OBJECTS - len(stdout))
    assert read_answer(longest) == Done("ok", result=ID, objects=[])
    with pytest.raises(ProtocolError, match="16 MiB"):
        read_answer(longest + b" ")


def test_the_head_of_stdout_is_in_the_error() -> None:
    """The first bytes of a broken answer are stored, as a text that every reader of JSON takes."""
    failed = exit_answer(0, b"a\0b\xff" + b"x" * 10_000)
    assert isinstance(failed, Failed)
    assert (failed.retryable, failed.error["code"], failed.error["rule"]) == (
        False,
        "adapter_protocol",
        "utf8",
    )
    assert failed.error["stdout"].startswith("a\\x00b\\xffxxx")
    assert len(failed.error["stdout"]) < 600


def test_many_duplicate_keys_are_found_at_once() -> None:
    """An object of a mebibyte is searched once and not once for each key."""
    keys = ",".join(f'"{n:05}":0' for n in range(90_000))
    with pytest.raises(ProtocolError, match="00017"):
        read_answer(b"{" + keys.encode() + b',"00017":0}')


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        *((name, True) for name in ("batch", "b", "7z", "a.b_c-d", "a" * 64)),
        *(
            (name, False)
            for name in ("", "A", "-a", ".a", "a/b", "../../bin/sh", "a" * 65, "a b", "a\n", "é")
        ),
    ],
)
def test_names_of_adapters(name: str, is_good: bool) -> None:
    """A name can be no path and no option."""
    if is_good:
        assert contract.check_name(name) == name
    else:
        with pytest.raises(InvalidRequest, match="no name of an adapter"):
            contract.check_name(name)


def test_the_request_has_the_documented_keys() -> None:
    """The document for stdin is one line with the keys of the contract; values are there only if given."""
    request = Request(node=ID, function="dml+exec://x/y", inputs=[], execution_key=ID, execution_uuid="u")
    keys = (
        "v op node function inputs execution_key execution_uuid generation snapshot token deadline_ms request"
    )
    assert request.document().count(b"\n") == 1
    assert list(json.loads(request.document())) == keys.split()
    request = msgspec.structs.replace(request, values=[{"i64": "1"}])
    assert list(json.loads(request.document())) == [*keys.split(), "values"]


def test_every_rule_can_be_broken() -> None:
    """The fake adapters break each rule of the contract, and no others; the database checks values."""
    assert {rule for rule, _ in wrong.ANSWERS.values()} | {"value"} == set(contract.RULES)


def test_random_bytes_are_refused_or_read(seed: int) -> None:
    """Whatever is printed, reading it gives an answer or names a rule; nothing is raised."""
    chance = random.Random(seed)
    texts = [script.encode() for _, script in wrong.ANSWERS.values()] + [wrong.DONE.encode()]
    for _ in range(5_000):
        stdout = bytearray(chance.choice(texts))
        for _ in range(chance.randrange(4)):
            stdout[chance.randrange(len(stdout))] = chance.choice(b'{}[]":,\\u0019tfn\0\xff ')
        answered = exit_answer(0, bytes(stdout))
        assert not isinstance(answered, Failed) or answered.error.get("rule", "size") in contract.RULES
