"""SQL texts of content-addressed calls, and nothing else.

Lives here: a module for each noun: calls, adapters, objects, pushes. May not: a connection.
"""
