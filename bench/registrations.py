"""The cost of the check of workflow code at registration: python -m bench.registrations [--workflows N]

It writes modules into a folder of its own: one for each workflow, and then all workflows in few. The cost is
the time that a process was on a processor in `warn_of`, the least of some rounds, each in a new process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = '''"""Workflows of the benchmark."""
import asyncio
import random
import time
from datetime import datetime, timedelta

from pyengine import App, ctx

app = App("postgresql://nowhere")


@app.step
async def save_{n}(order: str, at: str) -> str:
    return f"{{order}} {{at}} {{time.time()}} {{random.random()}}"


def helper_{n}(parts: list[str]) -> list[str]:
    return [part.strip() for part in parts if part]
'''
WORKFLOW = """

@app.workflow(name="w{n}")
async def w{n}(order: str, count: int = 3) -> str:
    until = ctx.now() + timedelta(days=count)
    parts: list[str] = []
    for number in range(count):
        await asyncio.sleep(number)
        parts.append(f"{{order}} {{number}}")
        if order not in {{"a", "b"}} and number > 1:
            parts.extend(helper_{first}([order]))
    results = await asyncio.gather(*(save_{first}(part, until.isoformat()) for part in parts))
    return ",".join(sorted(set(results)))
"""
MEASURE = """
import importlib, sys, time
import pyengine.core.definitions.registry as registry
spent, count, check = 0.0, 0, registry.warn_of
def timed(function, workflow):
    global spent, count
    began = time.process_time()
    check(function, workflow)
    spent += time.process_time() - began
    count += 1
registry.warn_of = timed
for name in sys.argv[1:]:
    importlib.import_module(name)
print(count, spent)
"""


def write(folder: Path, workflows: int, in_each: int) -> list[str]:
    """Write modules with so many workflows in each; return their names."""
    names = []
    for first in range(0, workflows, in_each):
        body = "".join(WORKFLOW.format(n=n, first=first) for n in range(first, first + in_each))
        (folder / f"bench_{in_each}_{first}.py").write_text(HEAD.format(n=first) + body)
        names.append(f"bench_{in_each}_{first}")
    return names


def measure(folder: Path, names: list[str]) -> float:
    """Import modules in a new process; return the seconds of processor time of the check."""
    command = [sys.executable, "-c", MEASURE, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[1])


def main() -> None:
    """Measure both shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workflows", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for in_each in (1, 50):
            names = write(Path(folder), given.workflows, in_each)
            least = min(measure(Path(folder), names) for _ in range(given.rounds))
            print(f"{given.workflows} workflows, {in_each} in each module: {least:.3f} s")


if __name__ == "__main__":
    main()
