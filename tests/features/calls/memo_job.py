"""An app whose one memo takes long in its first run, for tests that kill its worker."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyengine import App, ctx

app = App()


@app.memo(version="1")
def build(n: int) -> int:
    """Writes down that it runs; the first run does not end."""
    log = Path(os.environ["MEMO_LOG"])
    first = not log.exists()
    with log.open("a", encoding="utf-8") as file:
        file.write("ran\n")
    if first:
        time.sleep(600)
    return 2 * n


@app.workflow
async def make(n: int) -> int:
    """One call."""
    return await ctx.call(build, n)
