"""Starting runs, waiting for them and steering them, from any process.

Lives here: the verbs of a client, their two transports (programs that await, programs that block), and
handles. May not: running anything; a client needs no worker in its process and no code of workflows.

The way of a start: `Client.start` (client.py) reads the options and encodes the arguments, a transport sends
one statement (asyncpg_transport.py), and `Run.result` waits until the poller hears of the end (results.py).
"""

from __future__ import annotations
