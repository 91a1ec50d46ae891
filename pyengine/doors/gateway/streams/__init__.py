"""Streams of messages, for members of groups.

Lives here: open streams, which messages go to whom, and their bytes. May not: messages to http addresses
(gateway/courier), requests. The way of one message: a member opens a stream (event_streams.py), which the
gateway remembers (members.py). A hint of the database wakes offers.py and unblocks.py, which ask for what is
due to members with open streams only, in the form of their API (dialects.py), so that several gateways can
share a database. Each message becomes one frame (frames.py).
"""

from __future__ import annotations
