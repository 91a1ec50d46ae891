"""The older API of durable promises over HTTP, for the clients that speak it.

Lives here: its paths, headers and errors. May not: a rule of it, which is SQL (sql/logic/doors/80_v0), its
streams and messages (gateway/streams). Names and forms are those of published clients: a key and the
strictness in headers, a token as the password of Basic authorization, deadlines beyond the range of ours,
answers without a body as 204.

The way of one request: a path leads to an endpoint (api.py), which first checks the token and reads the body.
The endpoint of a promise (promises.py), a task (tasks.py) or a schedule (schedules.py) reads the fields that
it needs (fields.py) and asks the database, which answers a status and a word. The status is that of the
answer, and the word becomes the code that clients know (answers.py).
"""

from __future__ import annotations
