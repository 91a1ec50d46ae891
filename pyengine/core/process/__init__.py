"""The ground of each process of the engine: its clock, its pauses, its tasks and its threads.

Lives here: the clock of every wait, back-off, supervised tasks, threads, until when leases hold, and the
part that all workers have in common. May not: know what a run is.
"""
