"""Fixtures of the core's tests in a copy that has nothing else: a server that another process prepared.

Lives here: what `style/test_core_alone.py` lays into the copy as `tests/core/conftest.py`, in place of what
starts servers and installs the schema. May not: an import of a feature or a door.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.cluster import Server, of_worker

TEMPLATE = "PYENGINE_TEST_TEMPLATE"


@pytest.fixture(scope="session")
def server() -> Server:
    """The server, on which nobody else is."""
    parts = conninfo_to_dict(os.environ[TEMPLATE])
    return Server(host=str(parts["host"]), port=int(str(parts["port"])), user=str(parts["user"]))


@pytest.fixture(scope="session")
def template() -> SimpleNamespace:
    """The database there that has the core's SQL, and the name of that which each test has to itself."""
    name = conninfo_to_dict(os.environ[TEMPLATE])["dbname"]
    return SimpleNamespace(template_dbname=name, dbname=of_worker("own"))


@pytest.fixture(scope="session")
def quiet(server: Server) -> Server:
    """The same server."""
    return server


@pytest.fixture(scope="session")
def quiet_template(template: SimpleNamespace) -> str:
    """The same database."""
    return str(template.template_dbname)
