"""The scheduled work in which crash tests kill workers.

Each second a run, whose step leaves a trace; and under each overlap runs that take longer than a second.
"""

from __future__ import annotations

from datetime import datetime

from pyengine import App, SchedulePolicy, ctx
from pyengine.features.schedules.policy import Overlap
from tests.system.crash.job import note

app = App()
app.registry.add_step(note)


@app.schedule("* * * * * *")
@app.workflow
async def beat(scheduled_at: datetime) -> str:
    """Note the instant."""
    return await note(f"{scheduled_at:%H:%M:%S}")


OVERLAPS: tuple[Overlap, ...] = ("skip", "buffer_one", "buffer_all", "cancel")
for overlap in OVERLAPS:

    @app.schedule("* * * * * *", id=overlap, policy=SchedulePolicy(overlap=overlap, catch_up="1h"))
    @app.workflow(name=f"slow_{overlap}")
    async def slow() -> None:
        """Take a second and a half."""
        await ctx.sleep("1500ms")
