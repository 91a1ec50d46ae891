"""Schedules: runs that begin by the clock.

Lives here: what code declares, how a worker makes it known, and the verbs of app and client. May not: read
cron expressions; SQL does that (sql/logic/features/75_schedules).
"""
