"""Calls of functions of other services.

Lives here: what such a call says, and the part of `ctx` that makes it. May not: the other service.
"""
