"""The gateway: the protocol over HTTP, for clients in any language.

Lives here: `pyengine serve`: requests with the protocol's envelope, streams of messages to members of groups,
messages to http addresses, tokens, limits, and what operators ask a server. May not: any rule of the
protocol, which is SQL (`durable.rpc`); a lease or a run; a database session that outlives a statement.

The way of one request: the HTTP server (http_server.py) takes its connection (connections.py) and hands it
to a route of app.py. Its body is read within limits (request_body.py), its JSON (json_object.py) is checked
as far as a database cannot (envelope.py), its token is verified (tokens.py) and compared with what it names
(permissions.py). Then the database answers (backend.py), and the HTTP status is that of the answer. It is
written no faster than its client takes it (outgoing.py), and counted until then (memory.py).

Members of groups get their messages on streams (streams/), http addresses get theirs pushed (courier/).
Clients of the older API have endpoints (older/) and streams of their own.
"""

from __future__ import annotations
