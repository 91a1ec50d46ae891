"""Addresses of the shop."""

from __future__ import annotations

from django.urls import path

from tests.examples.django_shop import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<int:order_id>", views.show),
    path("orders/<int:order_id>/cancel", views.cancel),
]
