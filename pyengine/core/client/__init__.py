"""Starting runs, waiting for them and controlling them, from any process.

Lives here: the verbs of a client, its transports for asynchronous and for blocking programs, and handles of
runs. May not: running workflows. A client needs neither a worker in its process nor the code of a workflow.

The way of a start: `Client.start` (client.py) reads the options and encodes the arguments, a transport sends
one statement (asyncpg_transport.py), and `Run.result` waits until the poller finds the result (results.py).
"""

from __future__ import annotations
