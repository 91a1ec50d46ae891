"""The features: each hangs on the core, and can be taken away.

Lives here: a folder for each. May not: an import by the core. Design: an app gives features to the core:
parts of `ctx`, checks of a registration, extensions of a worker.
"""
