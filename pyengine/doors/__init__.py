"""The doors: ways in for people and programs.

Lives here: a room for each door, such as the command line and the gateway. May not: be imported by the core
or by a feature. Design: a door knows core and features; without doors the engine runs as before.
"""
