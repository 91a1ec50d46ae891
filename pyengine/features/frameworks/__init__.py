"""Doing around functions in threads what frameworks do around a request.

Lives here: the frameworks that do something, each in a file. May not: import one; a program that uses it has
done that.
"""
