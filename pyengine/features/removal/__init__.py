"""The removal of one run by its id.

Lives here: the client's verb and its SQL text. May not: retention by age, which the tick does.
"""
