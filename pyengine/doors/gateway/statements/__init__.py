"""SQL texts of the gateway, and nothing else.

Lives here: a module for each dialect of the protocol. May not: a connection.
"""
