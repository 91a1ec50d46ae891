"""The shop's tables, and the engine's view of runs as a model to join with."""

from __future__ import annotations

from django.db import models


class Run(models.Model):
    """A row of `durable.runs`: read, never written."""

    id = models.TextField(primary_key=True)
    state = models.TextField()
    result = models.JSONField(null=True)

    class Meta:
        managed = False
        db_table = 'durable"."runs'


class Stock(models.Model):
    """What is left of an item."""

    item = models.TextField(primary_key=True)
    left = models.PositiveIntegerField()


class Order(models.Model):
    """An order, and the run that fulfils it."""

    item = models.TextField()
    # a view cannot be referenced: the constraint is made in SQL, see docs/how-to/foreign-keys.md
    run = models.ForeignKey(Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False)
