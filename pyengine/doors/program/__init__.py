"""An app as a program of its own: its worker in the foreground, its signals, a run here and now.

Lives here: what `app.serve` and `app.run` do with their process. May not: the worker itself.
"""
