"""SQL in workflows: transactions, steps that are functions of the database, and services.

Lives here: what code writes of them, how a replay reads transactions (transaction_log.py), and the runners of
a worker. May not: the meaning of a commit or of serving a task, which is SQL
(sql/logic/features/65_sql).
"""
