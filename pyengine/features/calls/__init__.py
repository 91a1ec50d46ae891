"""Content-addressed calls: what a call is, and how adapters execute it.

Lives here: the identity of calls and values, the contract with adapters, and the worker that runs them.
May not: replay and workflow code, which know a call only as a recorded step and an adopted promise.

The way of a call: SQL finds its result or starts an attempt, a promise whose task is in the queue of an
adapter. A worker leases the task, runs the adapter once (adapter_process.py), reads its answer (contract.py)
and reports it. Between two polls there is no process and no lease.
"""

from __future__ import annotations
