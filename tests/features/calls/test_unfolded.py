"""Law: a few objects that mean a great deal are refused where they are put and reported, and cost a reader an
error at most: values are looked at as they are read, not as they are written."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from pyengine.errors import DecodeError, EncodeError
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.contract import Done, Executed
from pyengine.features.calls.datums import Datum, datum_of, from_objects, from_tagged, to_tagged, value_of
from pyengine.features.calls.identity import NewObject
from tests.features.calls.scene import F, Scene, refusal


def doubled(times: int) -> list[Datum]:
    """1, a list that has it twice, a list that has that twice, and so on; parts first."""
    found = [datum_of(1)]
    for _ in range(times):
        found.append(Datum("list", None, (found[-1], found[-1])))
    return found


def nested(levels: int) -> list[Datum]:
    """1 in a list in a list, and so on; parts first."""
    found = [datum_of(1)]
    for _ in range(levels):
        found.append(Datum("list", None, (found[-1],)))
    return found


def manifest(datums: list[Datum]) -> str:
    """Them as an adapter publishes them."""
    return json.dumps({"v": 1, "objects": [row(one) for one in datums]})


def row(one: Datum) -> dict[str, Any]:
    """One of them."""
    scalar = None if one.scalar is None else base64.b64encode(one.scalar).decode()
    parts = [part.id.hex() for part in one.parts]
    return {"id": one.id.hex(), "kind": "datum", "sub": one.sub, "scalar": scalar, "refs": parts, "names": []}


def put(scene: Scene, datums: list[Datum]) -> bytes:
    """The id of the last of them, which are put at once."""
    scene.one("select durable.objects_import(%s)", manifest(datums))
    return datums[-1].id


def smuggled(scene: Scene, datums: list[Datum]) -> bytes:
    """The same as an earlier version has put them, which did not look at what they mean."""
    for one in datums:
        scene.conn.execute(
            "insert into durable._objects (created_at, id, kind, sub, scalar, refs)"
            " values (durable._now_ms(), %s, 'datum', %s, %s, %s) on conflict do nothing",
            (one.id, one.sub, one.scalar, [part.id for part in one.parts]),
        )
    return datums[-1].id


LARGE = datum_of("x" * 1_000_000)
TOO_MUCH = {
    "parts": (doubled(30), "more than 1000000 parts"),
    "bytes": ([LARGE, Datum("list", None, (LARGE,) * 68)], "more than 67108864 bytes"),
    "depth": (nested(501), "deeper than 500 levels"),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_a_put_is_refused(scene: Scene, kind: str) -> None:
    """With the reason, and nothing is put; also where most of it is there already."""
    datums, words = TOO_MUCH[kind]
    said = refusal(scene.conn, scene.one, "select durable.objects_import(%s)", manifest(datums))
    assert said.startswith("WF004") and words in said
    assert scene.one("select count(*) from durable._objects where kind = 'datum' and sub = 'list'") == 0
    smuggled(scene, datums[:-1])
    said = refusal(scene.conn, scene.one, "select durable.objects_import(%s)", manifest(datums[-1:]))
    assert said.startswith("WF004") and words in said


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_rows_that_are_there_are_refused_by_readers(scene: Scene, kind: str) -> None:
    """A value, a DAG, an input, a result, an explanation: each answers, with a sentence."""
    datums, words = TOO_MUCH[kind]
    id = smuggled(scene, datums)
    node = scene.one("select durable.node_literal(%s)", id)
    made = scene.one("select durable.dag_put(%s)", node)
    for query, one in (
        ("select durable.datum(%s)", id),
        ("select durable.dag_value(%s)", made),
        ("select durable.dag(%s)", made),
    ):
        said = refusal(scene.conn, scene.one, query, one)
        assert said.startswith("WF004") and words in said
    begun = scene.begin([bytes(node)])
    said = refusal(
        scene.conn, scene.one, "select durable.call_inputs_v1(%s)", bytes.fromhex(begun["execution_key"])
    )
    assert said.startswith("WF004")
    plan = json.dumps([{"function": F, "inputs": [scene.literal(2).hex()]}])
    assert scene.all("select * from durable.call_plan('s', %s)", plan)
    assert scene.all("select * from durable.objects where id = %s", id.hex())


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_it_is_no_result(scene: Scene, kind: str) -> None:
    """A report that brings it ends the attempt, and so does one that names what is there: result_invalid."""
    datums, words = TOO_MUCH[kind]
    objects = json.loads(manifest(datums))["objects"]
    node = NewObject("node", "literal", None, (datums[-1].id,))
    brought = {"class": "done", "outcome": "ok", "objects": objects, "result": node.id.hex()}
    begun = scene.begin()
    (document,) = scene.lease()
    assert scene.report(document, **brought, stderr="heard") == "failed_terminal"
    assert why(scene, begun, words) == "result_invalid"
    assert scene.count("_objects where kind = 'datum' and sub = 'list'") == 0
    assert scene.all("select class, stderr from durable._call_polls") == [("failed", "heard")]
    smuggled(scene, datums)
    made = scene.one("select durable.dag_put(durable.node_literal(%s))", datums[-1].id)
    begun = scene.begin()
    (document,) = scene.lease()
    report = {"class": "done", "outcome": "ok", "result": bytes(made).hex()}
    assert scene.report(document, **report) == "failed_terminal"
    assert why(scene, begun, words) == "result_invalid"


def test_malformed_objects_are_refused(scene: Scene) -> None:
    """They are no answer of the contract, as the worker says; what is too much cannot be a result."""
    scene.begin()
    (document,) = scene.lease()
    report = {"class": "done", "outcome": "ok", "objects": [{"id": "00"}], "result": "00" * 32}
    assert refusal(scene.conn, scene.report, document, **report).startswith("WF004")
    assert scene.count("_call_polls") == 0


class Bringing:
    """An adapter within this process, whose answers bring these objects."""

    adapters = ("fake",)

    def __init__(self, datums: list[Datum]) -> None:
        self._objects = json.loads(manifest(datums))["objects"]
        self._last = datums[-1].id.hex()

    async def execute(self, adapter: str, request: Any, may_begin: object) -> Executed:
        """Bring them."""
        return Executed(answer=Done(outcome="ok", objects=self._objects, result=self._last))

    async def cancel(self, adapter: str, request: Any) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def test_a_worker_says_that_a_result_cannot_be_one(
    open_scene: Scene, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempt ends as result_invalid at the report that brings it, and a line tells of it."""
    scene, begun = open_scene, open_scene.begin()

    async def main() -> None:
        async with AdapterWorker([Bringing(doubled(30))], dsn), asyncio.timeout(60):
            while scene.promise(begun)[0] == "pending":
                await asyncio.sleep(0.02)

    asyncio.run(main())
    assert why(scene, begun, "more than 1000000 parts") == "result_invalid"
    assert caplog.text.count("its result cannot be one") == 1


def why(scene: Scene, answer: dict[str, Any], words: str) -> str:
    """The code with which an attempt was given up, for a reason with these words."""
    state, error = scene.promise(answer)
    assert state == "rejected" and words in error["message"]
    return str(error["data"]["code"])


def test_a_hit_of_an_earlier_result_answers(scene: Scene) -> None:
    """A result that was pinned before is a hit without its value; who reads the value gets the sentence."""
    begun = scene.begin()
    (document,) = scene.lease()
    made = scene.dag(5)
    report = {"class": "done", "outcome": "ok", "result": made.hex()}
    state = scene.one(
        "select durable.call_report_v1(%s, %s, %s)",
        bytes.fromhex(begun["execution_key"]),
        document["version"],
        json.dumps(report),
    )
    assert state == "completed_ok"
    root = smuggled(scene, doubled(30))
    scene.conn.execute("set session_replication_role = replica")
    scene.conn.execute(
        "update durable._objects set refs = array[%s::bytea] where id = (select refs[1] from durable._objects"
        " where id = %s)",
        (root, made),
    )
    answer = scene.one(
        "select durable._value_answer(durable.call_begin('s', %s, %s), 's')", F, [scene.literal(1)]
    )
    assert answer["status"] == "ok" and "value" not in answer
    scene.conn.rollback()


def test_what_two_values_differ_in(scene: Scene) -> None:
    """Two values that mean a million parts, and a few rows, are compared row by row."""
    one, other = doubled(18), [datum_of(2)]
    for _ in range(18):
        other.append(Datum("list", None, (other[-1], other[-1])))
    ids = put(scene, one), put(scene, other)
    found = scene.all("select path, one, other from durable._datum_differences(%s, %s)", *ids)
    assert [path for path, *_ in found] == ["[0]" * 18, "[0]" * 17 + "[1]"]
    wide = [put(scene, [datum_of(n), Datum("list", None, (datum_of(n),) * 3)]) for n in (3, 4)]
    found = scene.all("select path from durable._datum_differences(%s, %s)", *wide)
    assert [path for (path,) in found] == ["[0]", "[1]", "[2]"]


@pytest.mark.parametrize("datums", [doubled(14), nested(500)], ids=["shared", "deep"])
def test_what_is_allowed_is_read(scene: Scene, datums: list[Datum]) -> None:
    """16,383 parts of fifteen rows, or 500 levels: by all readers, each row made once."""
    id = put(scene, datums)
    text = scene.one("select durable.datum(%s)::text", id)
    assert text.count('"i64": 1') == (2**14 if len(datums) < 20 else 1)
    assert scene.one("select length(durable._plain_json(durable.datum(%s))::text) > 500", id)
    assert scene.one("select (durable.call('dml+exec://fake/f', '[1]', scope => 's')) ->> 'at'") == "started"


def refused_by_readers(datums: list[Datum], why: str) -> None:
    """No reader in Python takes the last of them."""
    top = datums[-1]
    rows = {one.id: NewObject("datum", one.sub, one.scalar, tuple(p.id for p in one.parts)) for one in datums}
    for read in (lambda: from_objects(top.id, rows), lambda: value_of(top)):
        with pytest.raises(DecodeError, match=why):
            read()
    with pytest.raises(EncodeError, match=why):
        to_tagged(top)


def test_python_reads_and_writes_each_part_once() -> None:
    """Values with shared parts cost what they have in rows; more than a million parts are refused."""
    shared: Any = [1]
    for _ in range(14):
        shared = [shared, shared]
    made = datum_of(shared)
    objects = {one.id: one for one in made.objects()}
    assert len(objects) == 16 and from_objects(made.id, objects) == made
    assert value_of(made) == shared
    for _ in range(16):
        shared = [shared, shared]
    with pytest.raises(EncodeError, match="parts"):
        datum_of(shared)
    refused_by_readers(doubled(30), "parts")


def test_python_reads_as_deep_as_it_can() -> None:
    """Deeper values are an error of the value, not of Python's stack."""
    tagged: Any = {"i64": 1}
    for _ in range(5_000):
        tagged = {"list": [tagged]}
    with pytest.raises(DecodeError, match="deep"):
        from_tagged(tagged)
    refused_by_readers(nested(5_000), "deep")
