"""Durable promises, as clients create, settle and read them.

Lives here: the client's verbs, their records and their SQL texts. May not: promises of runs, which the core
makes.
"""
