"""Errors of the libraries that people use most: as what they come back from the journal, and with what.

`python -m tests.examples.test_error_corpus` prints the table of docs/how-to/retries.md. Without --full a
library that is not installed is left out; `pip install -e '.[corpus]'` has them all.
"""

from __future__ import annotations

import email.message
import io
import subprocess
import urllib.error
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyengine.core.values.error_access import asked
from pyengine.core.values.exceptions import ExceptionCodec

PAGE = Path(__file__).parents[2] / "docs/how-to/retries.md"
URL = "https://api.example/x"
REQUEST = httpx.Request("GET", URL)
# an error, and the attributes that people read of it
Case = tuple[BaseException, str]


def response(status: int) -> httpx.Response:
    """An answer to the request."""
    return httpx.Response(status, request=REQUEST, text="busy")


def raised(call: Callable[[], Any]) -> BaseException:
    """The error that a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def of_httpx(lib: Any) -> list[Case]:
    """httpx."""
    return [
        (lib.HTTPStatusError("503 Busy", request=REQUEST, response=response(503)), "request response"),
        (lib.ConnectError("refused", request=REQUEST), "request"),
        (lib.ReadTimeout("late", request=REQUEST), "request"),
    ]


def of_requests(lib: Any) -> list[Case]:
    """requests."""
    found = lib.Response()
    found.status_code, found.url, found._content = 503, URL, b"busy"
    return [
        (lib.HTTPError("503 Busy", response=found), "response"),
        (lib.ConnectionError("refused"), "response"),
        (lib.ReadTimeout("late"), "response"),
    ]


def of_aiohttp(lib: Any) -> list[Case]:
    """aiohttp."""
    multidict, url = import_module("multidict"), import_module("yarl").URL(URL)
    info = lib.RequestInfo(url, "GET", multidict.CIMultiDictProxy(multidict.CIMultiDict()), url)
    failed = lib.ClientResponseError(info, (), status=503, message="Busy")
    return [(failed, "status message request_info"), (lib.ServerTimeoutError("late"), "")]


def of_asyncpg(lib: Any) -> list[Case]:
    """asyncpg."""
    error = lib.UniqueViolationError("duplicate key")
    error.constraint_name, error.detail = "orders_pkey", "Key (id)=(1) already exists."
    return [(error, "sqlstate constraint_name detail"), (lib.SerializationError("try again"), "sqlstate")]


def of_psycopg(lib: Any) -> list[Case]:
    """psycopg."""
    return [(lib.errors.UniqueViolation("duplicate key"), "sqlstate"), (lib.OperationalError("refused"), "")]


def of_sqlalchemy(lib: Any) -> list[Case]:
    """SQLAlchemy."""
    exc, orig = (
        import_module("sqlalchemy.exc"),
        import_module("psycopg").errors.UniqueViolation("duplicate key"),
    )
    failed = exc.IntegrityError("insert into orders", {"id": 1}, orig)
    return [(failed, "orig statement params"), (exc.NoResultFound("No row was found"), "")]


def of_pydantic(lib: Any) -> list[Case]:
    """pydantic."""
    return [(raised(lambda: lib.TypeAdapter(int).validate_python("x")), "errors title")]


def of_botocore(lib: Any) -> list[Case]:
    """botocore, and so boto3."""
    exc = import_module("botocore.exceptions")
    answer = {"Error": {"Code": "NoSuchKey", "Message": "gone"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    failed = exc.ClientError(answer, "GetObject")
    return [(failed, "response operation_name"), (exc.EndpointConnectionError(endpoint_url=URL), "kwargs")]


def of_openai(lib: Any) -> list[Case]:
    """openai."""
    failed = lib.RateLimitError("slow down", response=response(429), body={"code": "rate"})
    return [
        (failed, "status_code code body request_id message response"),
        (lib.APITimeoutError(REQUEST), "request"),
    ]


def of_redis(lib: Any) -> list[Case]:
    """redis."""
    return [(lib.ConnectionError("refused"), ""), (lib.exceptions.LockError("lost"), "")]


def of_grpc(lib: Any) -> list[Case]:
    """grpcio."""
    aio = import_module("grpc.aio")
    status, none = lib.StatusCode.UNAVAILABLE, aio.Metadata()
    return [(aio.AioRpcError(status, none, none, details="down"), "code details")]


def of_json(lib: Any) -> list[Case]:
    """The standard library's."""
    missing = urllib.error.HTTPError(URL, 404, "Not Found", email.message.Message(), io.BytesIO(b""))
    ended = subprocess.CalledProcessError(1, ["ls"], output=b"x", stderr=b"no")
    return [
        (raised(lambda: lib.loads("{x")), "msg doc pos lineno colno"),
        (missing, "code msg hdrs url"),
        (ended, "returncode cmd output stderr"),
    ]


LIBRARIES: dict[str, Callable[[Any], list[Case]]] = {
    name.removeprefix("of_"): made for name, made in list(globals().items()) if name.startswith("of_")
}


def named(cls: type) -> str:
    """A class as people write it."""
    module = cls.__module__.partition(".")[0].removesuffix("_core")
    return f"`{cls.__name__}`" if module == "builtins" else f"`{module}.{cls.__name__}`"


def is_kept(error: BaseException, back: BaseException, name: str) -> bool:
    """Whether an attribute is what it was."""
    mine, theirs = getattr(error, name), asked(lambda: getattr(back, name), ...)
    return type(mine) is type(theirs) and (mine == theirs or repr(mine) == repr(theirs))


def row(error: BaseException, names: str) -> str:
    """The row of an error."""
    codec = ExceptionCodec()
    back = codec.decode(codec.encode(error))
    kept = [name for name in names.split() if is_kept(error, back, name)]
    missing = [name for name in names.split() if name not in kept]
    became = "itself" if type(back) is type(error) else named(type(back))
    if str(back) == str(error):
        kept.append("text")
    cells = [named(type(error)), became, *(", ".join(f"`{one}`" for one in each) for each in (kept, missing))]
    return f"| {' | '.join(cells)} |".replace("`text`", "text").replace("  ", " ")


def rows(library: str) -> list[str]:
    """The rows of a library that is installed."""
    return [row(*case) for case in LIBRARIES[library](import_module(library))]


def test_the_table_of_the_page(request: pytest.FixtureRequest) -> None:
    """Each error comes back as the page says."""
    page = PAGE.read_text(encoding="utf-8")
    there = [name for name in LIBRARIES if find_spec(name) is not None]
    assert len(there) >= 6
    if request.config.getoption("--full"):
        assert there == [*LIBRARIES], "pip install -e '.[corpus]'"
    for name in there:
        assert "\n".join(rows(name)) + "\n" in page, name


if __name__ == "__main__":
    print("\n".join(one for library in LIBRARIES for one in rows(library)))
