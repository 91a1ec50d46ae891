"""The scheduled work in which crash tests kill workers: each second a run, whose step leaves a trace."""

from __future__ import annotations

from datetime import datetime

from pyengine import App
from tests.system.crash.job import note

app = App()
app.registry.add_step(note)


@app.schedule("* * * * * *")
@app.workflow
async def beat(scheduled_at: datetime) -> str:
    """Note the instant."""
    return await note(f"{scheduled_at:%H:%M:%S}")
