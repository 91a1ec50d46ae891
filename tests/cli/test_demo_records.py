"""What the demo's audit says of files, without the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyengine.demo import records
from pyengine.demo.job import prepare
from pyengine.demo.records import Limits, Slice, Verdict
from pyengine.errors import InvalidRequest, NotFound
from tests.cli.packages import installed, record_line, sources, wheel


def audit(place: Path) -> Verdict:
    """Verify everything in a place."""
    total = Verdict()
    for distribution in records.find([str(place)]):
        record = records.entries(distribution)
        total.skipped += record.skipped
        total.problems += [record.problem] if record.problem else []
        for part in records.slices(distribution, Limits()):
            total.add(records.verify(distribution, part))
    return total


def found(verdict: Verdict) -> list[tuple[str, str]]:
    """Kinds and file names of the problems."""
    return sorted((problem.kind, Path(problem.path).name) for problem in verdict.problems)


def test_true_records_have_no_problems(tmp_path: Path) -> None:
    """Files that are as RECORD says are counted; lines without a hash are skipped."""
    files = sources("one", 5)
    script = tmp_path / "env" / "bin" / "tool"
    script.parent.mkdir(parents=True)
    script.write_bytes(b"#!python\n")
    site = tmp_path / "env" / "lib" / "site-packages"
    installed(
        site,
        "one",
        files,
        record_line("../../bin/tool", b"#!python\n"),
        record_line("one/m0.py", files["one/m0.py"], "sha512"),
    )
    verdict = audit(site)
    assert (verdict.files, verdict.skipped, verdict.problems) == (7, 2, [])
    assert verdict.bytes == sum(map(len, files.values())) + len(files["one/m0.py"]) + 9
    assert audit(tmp_path / "env").files == 7


def test_problems_are_named(tmp_path: Path) -> None:
    """Other content, other size, missing files and lines that cannot be read are told apart."""
    record = installed(tmp_path, "one", sources("one", 4), "one/what.py,sha256", "one/odd.py,nosuch=abc,3")
    (tmp_path / "one/m0.py").write_bytes(b"# one X\n")
    (tmp_path / "one/m1.py").write_bytes(b"longer than it was, by far, I think")
    (tmp_path / "one/m2.py").unlink()
    (tmp_path / "one/m3.py").unlink()
    (tmp_path / "one/m3.py").mkdir()
    assert found(audit(tmp_path)) == [
        ("mismatch", "m0.py"),
        ("mismatch", "m1.py"),
        ("missing", "m2.py"),
        ("missing", "m3.py"),
        ("unreadable", "odd.py"),
        ("unreadable", "what.py"),
    ]
    record.unlink()
    assert records.entries(records.find([str(tmp_path)])[0]).absent


def test_a_pipe_is_never_read(tmp_path: Path) -> None:
    """What RECORD lists is read only if it is a file."""
    import os

    installed(tmp_path, "one", {}, "../pipe,sha256=abc,3", "/dev/zero,sha256=abc,3")
    os.mkfifo(tmp_path.parent / "pipe")
    assert [kind for kind, _ in found(audit(tmp_path))] == ["missing", "missing"]


def test_wheels_are_read_in_place(tmp_path: Path) -> None:
    """Members of a wheel are verified in the archive; a broken archive is a problem and not a crash."""
    wheel(tmp_path, "good", sources("good", 3))
    wheel(tmp_path, "bad", sources("bad", 3), lie=True)
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no zip")
    verdict = audit(tmp_path)
    assert verdict.files == 6
    assert found(verdict) == [("mismatch", "m0.py"), ("unreadable", "broken-1.0-py3-none-any.whl")]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_steps_are_bounded(tmp_path: Path) -> None:
    """A step has at most so many files and bytes; a file that is bigger is alone; none is left out."""
    installed(tmp_path, "one", {f"one/f{i}": b"x" * size for i, size in enumerate([1, 1, 1, 50, 9, 9, 1])})
    (distribution,) = records.find([str(tmp_path)])
    made = records.slices(distribution, Limits(files=2, bytes=10))
    assert [(part.first, part.count) for part in made] == [(0, 2), (2, 1), (3, 1), (4, 1), (5, 2)]
    assert records.slices(distribution, Limits(files=100, bytes=1000)) == [Slice(first=0, count=7)]


def test_the_id_follows_the_files(tmp_path: Path) -> None:
    """The same environment has the same id; a changed file, even of the same size, gives another one."""
    import os

    installed(tmp_path, "one", sources("one", 3))
    first = prepare(tmp_path)
    assert prepare(tmp_path) == first
    file = tmp_path / "one/m1.py"
    known = file.stat()
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert prepare(tmp_path).id != first.id


def test_places_without_anything_are_refused(tmp_path: Path) -> None:
    """No such folder, a folder with nothing in it, and a file that is no wheel are told."""
    with pytest.raises(NotFound, match="there is no folder"):
        prepare(tmp_path / "none")
    with pytest.raises(NotFound, match="nothing to audit"):
        prepare(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="neither a folder nor a wheel"):
        prepare(tmp_path / "file")
