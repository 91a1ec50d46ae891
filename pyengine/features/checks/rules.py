"""The table: calls that a replay cannot repeat, and the alternatives to them.

Lives here: one row for each alternative, with the calls that it replaces. May not: deciding whether code
makes such a call (hazards.py), refusing one at run time (loop/restrictions.py, which reads the loop's part of
the table). Names are those under which Python knows the objects: `datetime.datetime.now`, however a module
imports it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any, Final

from pyengine.core.loop.restrictions import HTTP, LOOP_METHODS, STEP

LOG: Final = "ctx.log.info(), which is silent in a replay"
"""Alternative to a line for people: no replay differs by it, it only appears once more with each."""
RETURNED: Final = "a value that the step returns"
"""Alternative to reading an object that a step changes."""
_READ: Final = "a step, or an argument of the workflow"
_RANDOM: Final = "ctx.random(); for more, random.Random(ctx.random())"

_LOOP_CALLS: Final = {
    "asyncio.create_subprocess_exec": "subprocess_exec",
    "asyncio.create_subprocess_shell": "subprocess_shell",
    "asyncio.open_connection": "create_connection",
    "asyncio.open_unix_connection": "create_unix_connection",
    "asyncio.run": "run_until_complete",
    "asyncio.run_coroutine_threadsafe": "call_soon_threadsafe",
    "asyncio.start_server": "create_server",
    "asyncio.start_unix_server": "create_unix_server",
    "asyncio.to_thread": "run_in_executor",
}
"""Functions of asyncio that end in such a method."""

_CALLS: Final[Mapping[str, str]] = {
    "ctx.now()": """
        time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns
        time.process_time time.process_time_ns time.thread_time time.clock_gettime time.clock_gettime_ns
        time.localtime/0 time.gmtime/0 time.ctime/0 time.asctime/0 time.strftime/1
        datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today
        django.utils.timezone.now django.utils.timezone.localdate/0 pendulum.now arrow.now arrow.utcnow""",
    "await ctx.sleep()": "time.sleep",
    "ctx.randint()": "random.randint random.randrange",
    "ctx.choice()": "random.choice secrets.choice",
    "ctx.shuffle()": "random.shuffle",
    _RANDOM: """
        random.random random.uniform random.triangular
        random.choices random.sample random.gauss random.normalvariate random.lognormvariate
        random.expovariate random.betavariate random.gammavariate random.vonmisesvariate
        random.paretovariate random.weibullvariate random.getrandbits random.randbytes random.seed
        random.Random/0 random.SystemRandom os.urandom numpy.random.*""",
    "ctx.uuid7()": "uuid.uuid1 uuid.uuid6 uuid.uuid7",
    "ctx.uuid4(), or uuid.uuid5() of what the workflow knows": "uuid.uuid4 uuid.uuid8",
    "ctx.uuid4().hex, or a step": """
        secrets.token_bytes secrets.token_hex secrets.token_urlsafe secrets.randbelow
        secrets.randbits secrets.SystemRandom""",
    _READ: """
        os.getenv os.getenvb os.putenv os.unsetenv os.getcwd os.chdir os.getpid os.getppid os.getlogin
        os.cpu_count os.getloadavg os.uname platform.node platform.platform socket.gethostname
        socket.getfqdn getpass.getuser getpass.getpass builtins.input""",
    STEP: """
        builtins.open io.open os.open os.read os.write os.fdopen os.listdir os.scandir os.walk os.stat
        os.remove os.unlink os.rename os.replace os.mkdir os.makedirs os.rmdir os.removedirs os.truncate
        os.link os.symlink os.access os.path.exists os.path.isfile os.path.isdir os.path.getsize
        os.path.getmtime os.path.getctime glob.glob glob.iglob shutil.* tempfile.* zipfile.ZipFile
        tarfile.open gzip.open bz2.open lzma.open codecs.open
        pathlib.Path.cwd pathlib.Path.home
        socket.socket socket.create_connection socket.create_server socket.getaddrinfo
        socket.gethostbyname socket.gethostbyaddr socket.socketpair
        http.client.HTTPConnection http.client.HTTPSConnection smtplib.SMTP smtplib.SMTP_SSL ftplib.FTP
        ftplib.FTP_TLS imaplib.IMAP4 imaplib.IMAP4_SSL
        sqlite3.connect psycopg.connect psycopg.Connection.connect psycopg.AsyncConnection.connect
        psycopg2.connect asyncpg.connect asyncpg.create_pool sqlalchemy.create_engine
        sqlalchemy.ext.asyncio.create_async_engine boto3.client boto3.resource
        subprocess.* os.system os.popen os.fork os.execv os.spawnv
        threading.Thread threading.Timer concurrent.futures.ThreadPoolExecutor
        concurrent.futures.ProcessPoolExecutor multiprocessing.Process multiprocessing.Pool
        anyio.to_thread.run_sync anyio.run_process anyio.open_process anyio.open_file anyio.Path
        anyio.connect_tcp anyio.connect_unix anyio.getaddrinfo
        _thread.start_new_thread""",
    HTTP: """
        requests.get requests.post requests.put requests.patch requests.delete requests.head
        requests.options requests.request requests.Session requests.session
        urllib.request.urlopen urllib.request.urlretrieve urllib.request.build_opener
        urllib3.request urllib3.PoolManager urllib3.HTTPConnectionPool urllib3.HTTPSConnectionPool
        httpx.get httpx.post httpx.put httpx.patch httpx.delete httpx.head httpx.options httpx.request
        httpx.stream httpx.Client httpx.AsyncClient aiohttp.ClientSession aiohttp.request""",
    LOG: """
        builtins.print logging.Logger logging.log logging.debug logging.info logging.warning logging.error
        logging.exception logging.critical loguru._logger.Logger""",
}
"""Calls, by their alternative. `name/n`: only with at most n arguments; `name.*`: everything in a module."""

ATTRIBUTES: Final[Mapping[str, str]] = dict.fromkeys(("os.environ", "os.environb"), _READ)
"""Objects that code need not call: reading or writing them is enough."""

PATH_METHODS: Final = {*dir(Path), "walk"} - {
    *dir(PurePath),
    *("absolute", "cwd", "expanduser", "from_uri", "home", "resolve"),
}
"""Methods of a `pathlib.Path` that touch the file system: those that a pure path has not."""

MUTATING_METHODS: Final = {*dir(list), *dir(dict), *dir(set), *dir(deque), "subtract"} - {
    *(*dir(tuple), *dir(frozenset), *dir(MappingProxyType), "fromkeys", "maxlen"),
}
"""Methods by which a list, dict, set or deque changes: those that what cannot be changed has not."""

SET_ORDER: Final = "sorted(...), since a set of texts has another order in each process"
IDENTITIES: Final = "a name or a number of your own, since addresses differ at each replay"
HASHES: Final = "hashlib or zlib.crc32, since hashes of texts differ from process to process"
OUTER: Final = "a variable of the workflow, since every replay and every run changes this one again"

_INSTANCES: Final = frozenset(
    {
        "random.Random",
        "random.SystemRandom",
        "socket.socket",
        "requests.Session",
        "httpx.Client",
        "httpx.AsyncClient",
        "aiohttp.ClientSession",
        "urllib3.PoolManager",
        "concurrent.futures.ThreadPoolExecutor",
        "concurrent.futures.ProcessPoolExecutor",
        "logging.Logger",
        "loguru._logger.Logger",
    }
)
"""Classes whose methods no workflow may call, on an object that was made elsewhere."""


def instead_of_loop_method(name: str) -> str | None:
    """Return the alternative to a method of an event loop, if the deterministic loop refuses it."""
    return _by_loop_method.get(name)


def instead_of(name: str, arguments: int | None = None) -> str | None:
    """Return the alternative to a call by its full name, or None if a replay can repeat it.

    Args:
        name: such as `datetime.datetime.now`.
        arguments: how many it is given; None if that is not known.
    """
    row = _by_name.get(name)
    if row is None:
        module = name.rpartition(".")[0]
        while module and (row := _by_name.get(f"{module}.*")) is None:
            module = module.rpartition(".")[0]
    if row is None or (arguments is not None and arguments > row[1]):
        return None
    return row[0]


def instead_of_type(cls: type) -> str | None:
    """Return the alternative to the methods of an object that was made outside of the workflow, if any."""
    found = next((name for base in cls.__mro__ if (name := full_name(base)) in _INSTANCES), None)
    return None if found is None else _by_name[found][0]


def attribute_name(value: Any) -> str | None:
    """Return the name of an object that code need not call, or None if it is none of these."""
    for name in ATTRIBUTES:
        # os.environb is not everywhere
        if value is vars(os).get(name.removeprefix("os."), ATTRIBUTES):
            return name
    return None


def full_name(value: Any) -> str | None:
    """Return the name in the table of a function or class, however imported; None if it has no row."""
    if not issubclass(type(value), _CALLABLE):
        # other objects may answer anything when they are hashed or compared
        return None
    _find_loaded()
    found = _by_object.get(value)
    if found is None:
        module, name = value.__module__, value.__qualname__
        if f"{module}.*" in _by_name:
            return f"{module}.{name}"
    return found


_ALWAYS: Final = 1 << 30
_CALLABLE: Final = (FunctionType, BuiltinFunctionType, MethodType, type)
_by_loop_method: Final = {name: instead for instead, names in LOOP_METHODS.items() for name in names.split()}
_by_name: Final[dict[str, tuple[str, int]]] = {
    name: (instead, int(most) if most else _ALWAYS)
    for instead, names in _CALLS.items()
    for name, _, most in (each.partition("/") for each in names.split())
}
_by_name.update({name: (_by_loop_method[ends], _ALWAYS) for name, ends in _LOOP_CALLS.items()})
_by_object: Final[dict[Any, str]] = {}
_missing: Final = {name for name in _by_name if not name.endswith(".*")}
_modules_seen = 0


def _find_loaded() -> None:
    """Find the objects of the table in the modules that are loaded; those loaded later are found later."""
    global _modules_seen
    if _modules_seen == (_modules_seen := len(sys.modules)):
        return
    for name in list(_missing):
        found = _loaded(name.split("."))
        if found is not None:
            _missing.discard(name)
            _by_object.setdefault(found, name)


def _loaded(path: list[str]) -> Any:
    """Return the object of a full name, if its module is loaded; no module is asked to load another."""
    for count in range(len(path) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(path[:count]))
        if found is not None:
            found = getattr(found, "__dict__", {}).get(path[count])
            for part in path[count + 1 :]:
                found = getattr(found, part, None)
            return found
    return None
