"""Compensation: what a run undoes when it fails.

Lives here: the list of what is to be undone, and the part of `ctx` that fills it. May not: an order of its
own; the code of the run says what is undone.
"""
