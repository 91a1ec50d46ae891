"""How far a run has come.

Lives here: the part of `ctx` that tells it, and the bar on a terminal that shows it. May not: a decision
about a run.
"""
