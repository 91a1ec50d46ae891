"""Steering many runs at once.

Lives here: the filter, the client's verbs and their SQL texts. May not: the verbs of one run, which the core
has.
"""
