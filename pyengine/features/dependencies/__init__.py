"""`ctx.deps`: what steps share in a worker, opened once.

Lives here: opening and closing them, and the part of `ctx` that hands them out. May not: their life within a
step.
"""
