"""Many members at once, in one event loop: they poll, acquire, fulfil, and open streams again.

Lives here: `Crowd`, which counts what it gets, and `OlderCrowd`, which speaks the older API. May not: an
assertion. Each member opens its stream at one of several gateways, another one each time, and bears that any
of them goes away at any moment.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx

from tests.doors.gateway.http_client import VERSION

PAUSE_S = 0.1


class Crowd:
    """Members of some groups, and producers of work for them.

    Args:
        ports: the gateways.
        seed: of the choices.
        stream_ports: where they have streams; None: the same.
    """

    prefix = "/poll"

    def __init__(self, ports: list[int], seed: int, stream_ports: list[int] | None = None) -> None:
        self.ports = ports
        self.stream_ports = stream_ports or ports
        self.random = random.Random(seed)
        self.offered: Counter[str] = Counter()
        self.unblocked: Counter[str] = Counter()
        self.fulfilled: set[str] = set()
        self.statuses: Counter[int] = Counter()
        self.streams = 0
        self.opened = 0
        self._slots = asyncio.Semaphore(24)
        # so that what is offered is acquired before all is made
        self._making = asyncio.Semaphore(12)
        self._http = httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=48))
        self._tasks: set[asyncio.Task[None]] = set()
        # offered again before it was acquired: the machine is slow
        self._executing: set[str] = set()

    async def ask(self, kind: str, **data: Any) -> Any:
        """Status and data of a request, sent until a gateway answers."""
        body = {"kind": kind, "head": {"corrId": "c", "version": VERSION}, "data": data}
        status, told = await self.request("POST", "/", body)
        return status, told["data"]

    async def request(self, method: str, path: str, body: Any) -> Any:
        """Status and body of an answer, asked for until a gateway gives it."""
        while True:
            port = self.random.choice(self.ports)
            with suppress(httpx.TransportError):
                async with self._slots:
                    answer = await self._http.request(method, f"http://127.0.0.1:{port}{path}", json=body)
                self.statuses[answer.status_code] += 1
                if answer.status_code != 503:
                    return answer.status_code, answer.json()
            await asyncio.sleep(PAUSE_S)

    async def task(self, id: str, target: str) -> None:
        """Make a task."""
        async with self._making:
            await self.ask("promise.create", id=id, timeoutAt=2**52, tags={"resonate:target": target})

    async def unblock(self, id: str, address: str) -> None:
        """Make a promise, listen to it, settle it."""
        async with self._making:
            await self.ask("promise.create", id=id, timeoutAt=2**52, tags={"resonate:external": "true"})
            await self.ask("promise.register_listener", awaited=id, address=address)
            await self.ask("promise.settle", id=id, state="resolved")

    def member(self, group: str, pid: str) -> None:
        """Begin to poll as a member."""
        self._tasks.add(asyncio.create_task(self._member(group, pid)))

    async def leave(self) -> None:
        """Stop everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def _member(self, group: str, pid: str) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await self._stream(self.random.choice(self.stream_ports), group, pid)
            await asyncio.sleep(PAUSE_S * (1 + self.random.random()))

    async def _stream(self, port: int, group: str, pid: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        is_open = False
        try:
            writer.write(f"GET {self.prefix}/{group}/{pid} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
            async for line in reader:
                if line.startswith(b":") and not is_open:
                    is_open = True
                    self.streams += 1
                    self.opened += 1
                elif line.startswith(b"data: "):
                    self._take(json.loads(line[6:]), pid)
        finally:
            self.streams -= is_open
            writer.close()

    def _take(self, message: dict[str, Any], pid: str) -> None:
        if message["kind"] == "unblock":
            self.unblocked[message["data"]["promise"]["id"]] += 1
            return
        task = message["data"]["task"]
        self._offer(task["id"], task["version"], pid)

    def _offer(self, id: str, version: int, pid: str) -> None:
        self.offered[id] += 1
        if id in self._executing:
            return
        self._executing.add(id)
        running = asyncio.create_task(self._execute(id, version, pid))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _execute(self, id: str, version: int, pid: str) -> None:
        status, data = await self.ask("task.acquire", id=id, version=version, pid=pid, ttl=30_000)
        self._executing.discard(id)
        if status != 200:
            return
        settle = {"kind": "promise.settle", "head": {}, "data": {"id": id, "state": "resolved"}}
        status, _ = await self.ask("task.fulfill", id=id, version=data["task"]["version"], action=settle)
        if status == 200:
            self.fulfilled.add(id)


class OlderCrowd(Crowd):
    """The same with the older API; its streams have a port of their own."""

    prefix = ""

    async def task(self, id: str, target: str) -> None:
        """Make a task."""
        async with self._making:
            await self.request(
                "POST", "/promises", {"id": id, "timeout": 2**52, "tags": {"resonate:invoke": target}}
            )

    async def unblock(self, id: str, address: str) -> None:
        """Make a promise, subscribe to it, complete it."""
        async with self._making:
            await self.request("POST", "/promises", {"id": id, "timeout": 2**52})
            listener = {"id": "s", "timeout": 2**52, "recv": address}
            await self.request("POST", f"/promises/subscribe/{id}", listener)
            await self.request("PATCH", f"/promises/{id}", {"state": "RESOLVED"})

    def _take(self, message: dict[str, Any], pid: str) -> None:
        if message["type"] == "notify":
            self.unblocked[message["promise"]["id"]] += 1
        else:
            self._offer(message["task"]["id"], message["task"]["counter"], pid)

    async def _execute(self, id: str, version: int, pid: str) -> None:
        task = {"id": id, "counter": version}
        status, _ = await self.request("POST", "/tasks/claim", {**task, "processId": pid, "ttl": 30_000})
        self._executing.discard(id)
        if status != 201:
            return
        await self.request("PATCH", f"/promises/{id}", {"state": "RESOLVED"})
        status, _ = await self.request("POST", "/tasks/complete", task)
        if status == 201:
            self.fulfilled.add(id)
