"""Settings of the shop: one database, for Django and for the engine."""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

_URL = conninfo_to_dict(os.environ.get("DATABASE_URL", "postgresql://localhost/shop"))

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",  # over psycopg 3
        "NAME": _URL.get("dbname"),
        "USER": _URL.get("user", ""),
        "PASSWORD": _URL.get("password", ""),
        "HOST": _URL.get("host", ""),
        "PORT": _URL.get("port", ""),
    }
}
INSTALLED_APPS = ["tests.examples.django_shop"]
ROOT_URLCONF = "tests.examples.django_shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "for the example only"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
