"""The functions of the database that people write: services, which workers call as runs.

Lives here: the serving of services (service_runner.py). May not: their list and the meaning of serving one,
which is SQL.
"""
