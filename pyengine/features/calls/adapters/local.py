#!/usr/bin/env python3
"""The adapter `local`: runs a program of this machine as a job.

Lives here: starting a job once, its state, its result, its end. May not: any import of the package, because
an adapter knows only the contract. A function is ``dml+exec://local/<program>?arg=x&arg=y&output=json``. The
program is looked for in the folders of DURABLE_LOCAL_PATH and nowhere else, so data cannot run what nobody
has put there. It gets the request on stdin and the inputs as the files inputs/0, inputs/1, and what it prints
is the result.

Design: a job is a folder, named by the execution key, and a supervisor process in a session of its own, which
locks a file there for as long as it lives. The lock decides everything: locked, the job runs; free with an
exit code in the folder, it has ended; free without a job file, it was never started, so this poll starts it;
free otherwise, it was lost with its machine. Two polls at once cannot start two jobs, and no process id has
to be trusted after a restart. The token names machine, folder and process for people.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

USAGE, DATA, CONFIGURATION = 64, 65, 78
# a job that ends at once is answered by the poll that starts it
_FIRST_WAIT_S = 0.3
_CANCEL_GRACE_S = 5.0
_OUTPUT_LIMIT = 512 << 10
_DEEPEST = 100
_LOG_TAIL = 4 << 10
_STORED_S = 7 * 86400.0


def main() -> None:
    """Answer one poll, or supervise a job."""
    if sys.argv[1:2] == ["--supervise"]:
        _supervise(Path(sys.argv[2]), int(sys.argv[3]))
        return
    if len(sys.argv) != 2:
        _leave(USAGE, "usage: pyengine-adapter-local URI, with a request of the contract on stdin")
    try:
        request = json.load(sys.stdin)
        folder = _state() / str(request["execution_key"])
        host = json.loads(request["token"] or "{}").get("host", socket.gethostname())
        is_cancel = request["op"] == "cancel"
    except (ValueError, KeyError, TypeError) as error:
        _leave(DATA, f"stdin is no request: {error!r}")
    if is_cancel:
        _cancel(folder)
    elif host != socket.gethostname():
        # only a worker of that machine can see the job, so this poll says nothing about it
        token, message = request["token"], f"the job is on {host}"
        _print({"status": "pending", "token": token, "poll_after_ms": 5000, "message": message})
    else:
        _print(_poll(folder, sys.argv[1], request))


# -- polls


def _poll(folder: Path, uri: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer for a job, which is started if it never was."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    until_s = time.monotonic()
    with _lock(folder) as lock:
        if lock is not None:
            if (folder / "exit").exists():
                return _outcome(folder)
            if (folder / "job").exists():
                return _failed("job_lost", "the job ended without an exit code: its machine was restarted")
            refusal = _prepare(folder, uri, request)
            if refusal is not None:
                return refusal
            _start(folder, lock)
            until_s += _FIRST_WAIT_S
    while time.monotonic() < until_s:
        if (folder / "exit").exists():
            return _outcome(folder)
        time.sleep(0.02)
    return _running(folder)


def _running(folder: Path) -> dict[str, Any]:
    """Return the pending answer; jobs that run for long are polled less often."""
    job = json.loads((folder / "job").read_text()) if (folder / "job").exists() else {}
    token = json.dumps({"host": socket.gethostname(), "job": str(folder)} | job)
    age_s = time.time() - job.get("started", time.time())
    pause_ms = round(min(10.0, max(0.2, age_s / 4)) * 1000)
    return {"status": "pending", "token": token, "poll_after_ms": pause_ms}


def _outcome(folder: Path) -> dict[str, Any]:
    """Return the result of a job that has ended."""
    code = int((folder / "exit").read_text())
    if code != 0:
        ended = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
        return _error(f"the program {ended}", exit_code=code, stderr=_end_of(folder / "stderr"))
    size = (folder / "stdout").stat().st_size
    if size > _OUTPUT_LIMIT:
        return _error(f"the program printed {size} bytes, {_OUTPUT_LIMIT} are allowed; print a URI instead")
    output = json.loads((folder / "command").read_text())["output"]
    try:
        value = _checked(_VALUES[output]((folder / "stdout").read_bytes().decode()))
    except (ValueError, RecursionError) as error:
        return _error(f"the program printed no {output}: {error}")
    return {"status": "done", "outcome": "ok", "value": value}


def _cancel(folder: Path) -> None:
    """End the job of a folder, if it runs."""
    until_s, number = time.monotonic() + _CANCEL_GRACE_S, signal.SIGTERM
    while (folder / "lock").exists():
        with _lock(folder) as lock:
            if lock is not None:
                return
            if (folder / "job").exists():
                # the job's supervisor has the lock, so this is its process group
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(json.loads((folder / "job").read_text())["pid"], number)
        if time.monotonic() > until_s:
            number = signal.SIGKILL
        time.sleep(0.05)


# -- jobs


def _prepare(folder: Path, uri: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """Write the files of a job: its command, and what goes in; or return why it cannot be started."""
    parts = urlsplit(uri)
    options = parse_qs(parts.query, keep_blank_values=True)
    output = options.get("output", ["text"])[-1]
    if parts.scheme != "dml+exec" or output not in _VALUES:
        _leave(USAGE, f"a function is dml+exec://local/PROGRAM?arg=x&output={'|'.join(_VALUES)}, not {uri}")
    if "\0" in unquote(uri):
        _leave(USAGE, "a program and its arguments have no NUL")
    program = _program(unquote(parts.path).lstrip("/"))
    if program is None:
        return _failed("no_program", f"there is no program {parts.path} in the folders of DURABLE_LOCAL_PATH")
    values, argv = request.get("values", []), [program, *options.get("arg", [])]
    if len(values) < len(request["inputs"]):
        _leave(CONFIGURATION, "the inputs have no values here: they have 1 MiB at most, with --inline-inputs")
    command = {"argv": argv, "output": output}
    inputs = folder / "work" / "inputs"
    shutil.rmtree(folder / "work", ignore_errors=True)
    inputs.mkdir(parents=True)
    for number, value in enumerate(values):
        (inputs / str(number)).write_bytes(_plain_bytes(value))
    (folder / "request").write_text(json.dumps(request))
    (folder / "command").write_text(json.dumps(command))
    _forget_old(folder.parent)
    return None


def _program(name: str) -> str | None:
    """Return the path of a program below the folders of DURABLE_LOCAL_PATH."""
    folders = [Path(one).resolve() for one in os.environ.get("DURABLE_LOCAL_PATH", "").split(":") if one]
    if not folders:
        _leave(CONFIGURATION, "DURABLE_LOCAL_PATH names no folder: nothing may be run")
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_relative_to(folder) and path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def _start(folder: Path, lock: int) -> None:
    """Start the supervisor, which inherits the lock."""
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--supervise", str(folder), str(lock)]
    with (folder / "supervisor").open("wb") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            pass_fds=(lock,),
            start_new_session=True,
        )


def _supervise(folder: Path, lock: int) -> None:
    """Run the job, and write down how it ended; the lock is released with this process."""
    os.set_inheritable(lock, False)
    # a cancellation signals the group: the program ends, and this process writes its exit code
    signal.signal(signal.SIGTERM, lambda *_: None)
    _write(folder / "job", json.dumps({"pid": os.getpid(), "started": time.time()}))
    argv = json.loads((folder / "command").read_text())["argv"]
    with (
        (folder / "request").open("rb") as stdin,
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
    ):
        try:
            code = subprocess.run(
                argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=folder / "work", check=False
            ).returncode
        except OSError as error:
            stderr.write(f"{argv[0]} cannot be executed: {error.strerror}\n".encode())
            code = 126
    _write(folder / "exit", str(code))


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[int | None]:
    """Lock a job for a block, unless it is locked; a supervisor that inherits the lock goes on with it."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file
    finally:
        os.close(file)


def _forget_old(state: Path) -> None:
    """Remove jobs that ended long ago: nobody polls for them any more."""
    for ended in state.glob("*/exit"):
        with contextlib.suppress(OSError):
            if time.time() - ended.stat().st_mtime > _STORED_S:
                shutil.rmtree(ended.parent)


# -- values


def _text(printed: str) -> Any:
    return _string(printed.removesuffix("\n"))


def _json(printed: str) -> Any:
    return _tagged(_read(printed))


def _read(printed: str) -> Any:
    """Return JSON of which no two readers make different values."""
    return json.loads(printed, parse_constant=_refuse, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has a key twice")
    return made


def _checked(value: Any, depth: int = 1) -> Any:
    """Return a value that an answer may have in it; the rules are those of the contract."""
    if isinstance(value, dict | list):
        if depth == _DEEPEST:
            raise ValueError(f"it is deeper than {_DEEPEST} levels, its types included")
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _checked(part, depth + 1)
    elif isinstance(value, str):
        _string(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is outside the range of f64")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} has more than 64 bits")
    return value


def _string(text: str) -> Any:
    if "\0" in text:
        raise ValueError("a text has no NUL")
    # half of a character is an error here
    text.encode()
    return {"string": text}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _tagged(value: Any) -> Any:
    """Return a plain JSON value as a tagged one; numbers keep their kind."""
    if isinstance(value, list):
        return {"list": [_tagged(each) for each in value]}
    if isinstance(value, dict):
        return {"map": [[_string(key), _tagged(each)] for key, each in value.items()]}
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return {"f64": repr(_checked(value))}
    if isinstance(value, bool) or value is None:
        return {"null": None} if value is None else {"bool": value}
    return {"i64": _checked(value)}


_VALUES: dict[str, Callable[[str], Any]] = {"text": _text, "json": _json, "tagged": _read}
"""Forms of stdout: the functions that make a tagged value of it."""


def _plain(tagged: dict[str, Any]) -> Any:
    """Return a tagged value as plain JSON, where plain JSON has it."""
    ((tag, value),) = tagged.items()
    if tag in ("list", "set"):
        return [_plain(each) for each in value]
    if tag == "map" and all("string" in key for key, _ in value):
        return {key["string"]: _plain(each) for key, each in value}
    if tag in ("map", "bytes"):
        return tagged
    return float(value) if tag == "f64" else value


def _plain_bytes(tagged: dict[str, Any]) -> bytes:
    """Return an input as the bytes of a file: a text or bytes as they are, anything else as JSON."""
    ((tag, value),) = tagged.items()
    if tag == "bytes":
        return base64.b64decode(value)
    return value.encode() if tag in ("string", "uri") else json.dumps(_plain(tagged)).encode()


# -- files and answers


def _state() -> Path:
    given = os.environ.get("DURABLE_LOCAL_STATE")
    return Path(given) if given else Path.home() / ".local" / "state" / "pyengine" / "local"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL))
        return file.read().decode(errors="backslashreplace").replace("\0", "\\x00")


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"status": "failed", "retryable": False, "error": {"code": code, "message": message}}


def _error(message: str, **data: Any) -> dict[str, Any]:
    error = {"message": message, "type": "JobFailed", "origin": "local", "data": data}
    return {"status": "done", "outcome": "error", "error": error}


def _print(answer: dict[str, Any]) -> None:
    print(json.dumps({"v": 1} | answer))


def _leave(code: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
