"""The courier: messages for http addresses, sent once the commit that causes them is done.

Lives here: the requests of a gateway to receivers: functions that run a whole pass within a request, and
listeners. May not: a request of a client; which tasks and unblocks are due (SQL); a database session that
outlives a statement.

The way of one message: a hint wakes courier.py, which asks for addresses with something due and takes as much
for each as it has room for (circuits.py). The database's side of that is outbox.py, the record of a message
pushes.py. A request (http_client.py) goes to addresses that hosts.py allows, and its answer (answers.py)
decides what becomes of the message and of the circuit. While a request is open, outbox.py holds its message,
so that no other gateway sends it too. A gateway that is killed holds nothing: its messages are due again
within seconds.

All that a courier knows is in its process, but for what must outlive it: the attempts and the next instant
of an unblock are columns of its row.
"""

from __future__ import annotations
