"""Placing an order and looking at it."""

from __future__ import annotations

import json
import os

from django.db import connection, transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from pyengine.sync import Client
from tests.examples.django_shop.models import Order, Stock
from tests.examples.django_shop.workflows import app, fulfil

# one for the process; it connects only for what is not done on Django's connection
client = Client(os.environ.get("DATABASE_URL", "postgresql://localhost/shop"), registry=app.registry)


class SoldOut(Exception):
    """There is nothing left of an item."""


@csrf_exempt
def place(request: HttpRequest) -> JsonResponse:
    """Place an order: the order, the run that fulfils it and the stock change together, or none of them."""
    item = json.loads(request.body)["item"]
    try:
        with transaction.atomic():
            order = Order.objects.create(item=item)
            run = client.start(fulfil, order.pk, id=f"order-{order.pk}", conn=connection)
            Order.objects.filter(pk=order.pk).update(run=run.id)
            if not Stock.objects.filter(item=item, left__gt=0).update(left=F("left") - 1):
                raise SoldOut
    except SoldOut:
        return JsonResponse({"error": f"no {item} left"}, status=409)
    return JsonResponse({"order": order.pk, "run": run.id}, status=201)


def show(request: HttpRequest, order_id: int) -> JsonResponse:
    """Show an order and where its run stands, by one query with a join."""
    order = get_object_or_404(Order.objects.select_related("run"), pk=order_id)
    return JsonResponse({"item": order.item, "state": order.run.state, "result": order.run.result})


@csrf_exempt
def cancel(request: HttpRequest, order_id: int) -> JsonResponse:
    """Cancel an order: its run ends and the item goes back, together."""
    order = get_object_or_404(Order, pk=order_id)
    with transaction.atomic():
        state = client.cancel(order.run_id, "changed my mind", conn=connection)
        Stock.objects.filter(item=order.item).update(left=F("left") + 1)
    return JsonResponse({"state": state})
