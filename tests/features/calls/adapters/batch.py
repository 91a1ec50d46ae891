#!/usr/bin/env python3
"""A fake batch system and its adapter in one, which tests throttle, stall and crash by files.

Lives here: jobs as files of the folder BATCH, submitted under the execution key as idempotency token. The
files that a test creates there: `throttled` (the system asks to come later), `stalled` (it does not answer),
`crash_after_submit` (the adapter dies once, after it has submitted), `finished` and `failed` (all jobs have
ended). The files that a test reads: `polls` and `cancels`, a line each, and `jobs/`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

BATCH = Path(os.environ["BATCH"])


def add_line(name: str, line: str) -> None:
    """Append a line to a file, whole, however many processes do."""
    file = os.open(BATCH / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def answer(**document: object) -> None:
    """Print an answer and end."""
    print(json.dumps({"v": 1} | document))
    raise SystemExit


def submit(key: str) -> str:
    """Return the job of an idempotency token, made once."""
    (BATCH / "jobs").mkdir(exist_ok=True)
    try:
        os.close(os.open(BATCH / "jobs" / key, os.O_CREAT | os.O_EXCL))
        add_line("submits", key)
    except FileExistsError:
        pass
    return f"job-{key[:8]}"


def end_with_the_worker() -> None:
    """Die with the process that polls, which may be killed while this one stalls; on Linux."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main() -> None:
    """Answer one poll."""
    end_with_the_worker()
    request = json.load(sys.stdin)
    key = request["execution_key"]
    if request["op"] == "cancel":
        add_line("cancels", key)
        return
    add_line("polls", f"{key} {request['token'] or '-'}")
    if (BATCH / "stalled").exists():
        time.sleep(600)
    if (BATCH / "throttled").exists():
        print("the system is busy", file=sys.stderr)
        raise SystemExit(75)
    job = submit(key)
    if (BATCH / "crash_after_submit").exists():
        (BATCH / "crash_after_submit").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if (BATCH / "failed").exists():
        answer(status="done", outcome="error", error={"message": f"{job} failed", "type": "JobFailed"})
    if (BATCH / "finished").exists():
        answer(status="done", outcome="ok", value={"string": job})
    answer(status="pending", token=job, poll_after_ms=int(os.environ.get("BATCH_PAUSE_MS", "20")))


main()
