"""`ctx.http`: requests that are steps.

Lives here: the part of `ctx`, the request itself, and the records of answers and errors. May not: a retry of
its own.
"""
