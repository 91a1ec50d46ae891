"""One Postgres server process in one folder: prepare the folder, launch, recognise, shut down, clear remains.

Lives here: everything that touches the folder's files and the server's process. May not: the locks of
``server.py``, and the choice of programs (``binaries.py``).

Design: a process id in a file proves nothing: the process may be a zombie by now, or another program, and
Postgres itself does not detect either. So the process is examined. The remains of a killed server are removed
only under the lock that its processes inherit, so that none of them is left.

The folder::

    data/          the data directory, made as data.new and renamed; never overwritten, never removed
    run/           the socket; if its path is too long it is in /tmp/pyengine-pg-* (see data/postmaster.pid)
    pginstall-*/   a copy of the programs, only if root's other user cannot reach the originals
    postgres.log   the server's log, with one older generation beside it
    *.lock         see server.py
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyengine.core.process import clock
from pyengine.doors.embedded.binaries import (
    Account,
    Binaries,
    binaries_of_major,
    can_enter,
    find_binaries,
    reachable_binaries,
    user_name,
)
from pyengine.errors import EmbeddedPostgresError

logger = logging.getLogger("pyengine.embedded.postmaster")

ELSEWHERE = (
    "choose another folder with PYENGINE_DATA_DIR (or --data-dir), "
    "or set PYENGINE_DATABASE_URL to a Postgres that runs already"
)
_POLL_S = 0.003
_LOG_LIMIT = 16 * 1024 * 1024
_SOCKET_DIR_LIMIT = 85  # bytes: the system allows 103 to 107 with /.s.PGSQL.65535 behind it
_PROC = Path("/proc")
_OURS = re.compile(r"(users|start|server)\.lock|data(\.new)?|run|postgres\.log(\.1)?|pginstall[-.].*")
_OFF = ("off", "false", "no", "0")
_INITDB_LIMIT_S = 300
_IMMEDIATE_LIMIT_S = 20  # after 5 s the server itself kills those of its processes that do not end
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """A live server, as its ``postmaster.pid`` describes it.

    Args:
        pid: its process id.
        port: the number in the name of its socket.
        socket_dir: the folder of its socket.
        ready: whether it takes connections; if not, it is starting or stopping.
    """

    pid: int
    port: int
    socket_dir: str
    ready: bool


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until the condition is true; return false if it is not within `limit_s` seconds."""
    deadline = clock.monotonic() + limit_s
    while not condition():
        if clock.monotonic() > deadline:
            return False
        clock.pause(_POLL_S)
    return True


def read_postmaster(data: Path) -> Postmaster | None:
    """Return the live server of a data directory, or None, even if ``postmaster.pid`` names one."""
    lines = _pid_file(data)
    pid = int(lines[0]) if lines and lines[0].isdigit() else 0
    if not pid or not is_postmaster(pid, data):
        return None
    if len(lines) < 8 or not lines[3].isdigit():  # it is still writing the file
        return Postmaster(pid=pid, port=0, socket_dir="", ready=False)
    ready = lines[7].strip() == "ready"
    return Postmaster(pid=pid, port=int(lines[3]), socket_dir=lines[4], ready=ready)


def answers(server: Postmaster) -> bool:
    """Return whether the server's socket accepts connections: not while it stops, or without its file."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(f"{server.socket_dir}/.s.PGSQL.{server.port}")
        except OSError:
            return False
    return True


def is_postmaster(pid: int, data: Path) -> bool:
    """Return whether a process is alive, is not a zombie, and serves a data directory.

    Args:
        pid: the process.
        data: the data directory without symbolic links: a server works there and was started with its name.
    """
    try:
        return Path(os.readlink(_PROC / str(pid) / "cwd")) == data
    except PermissionError:  # root without CAP_SYS_PTRACE (containers) cannot read it
        pass
    except OSError:
        if (_PROC / "self").exists():
            return False  # ended, or a zombie
    return f" -D {data} " in f"{_command_line(pid)} "


def _command_line(pid: int) -> str:
    """Return the command line of a live process; empty if it has ended or is a zombie."""
    if (_PROC / "self").exists():
        try:
            return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            return ""
    command = ["ps", "-ww", "-o", "stat=", "-o", "args=", "-p", str(pid)]
    line = os.fsdecode(subprocess.run(command, capture_output=True).stdout).strip()
    return "" if line.startswith("Z") else line


def _pid_file(data: Path) -> list[str]:
    try:
        return os.fsdecode((data / "postmaster.pid").read_bytes()).split("\n")
    except FileNotFoundError:
        return []


class ServerFolder:
    """The folder of one server.

    Args:
        path: the folder, without symbolic links.
        account: the user that runs the server; None means the user of this process.
    """

    def __init__(self, path: Path, account: Account | None) -> None:
        self.path = path
        self.data = path / "data"
        self.log_file = path / "postgres.log"
        self._account = account
        self._log_start = 0

    def open_file(self, name: str) -> int:
        """Open a file for appending, also for the server's user; return its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path / name, flags, 0o600)
        if self._account is not None:
            os.fchown(fd, self._account.uid, self._account.gid)
        return fd

    def running(self) -> Postmaster | None:
        """Return the server of this folder if it is alive."""
        for child in list(_children):  # reap our servers that have ended
            if child.poll() is not None and child in _children:
                _children.remove(child)
        return read_postmaster(self.data)

    def launch(
        self, binaries: Binaries | None, settings: Mapping[str, str], lock_fd: int
    ) -> subprocess.Popen[bytes]:
        """Start the server, creating its data if there are none; it is not ready yet when this returns.

        Args:
            binaries: programs to use; None means those that are found.
            settings: server settings by name.
            lock_fd: locked by the caller while no process of a server is left; the new ones inherit it.

        Raises:
            EmbeddedPostgresError: no programs, an unusable folder, data of another version, initdb failed.
        """
        if self._account is not None:
            self._let_in(self._account)
        found = binaries or find_binaries()
        fresh = self._is_fresh(found)
        bin_dir = reachable_binaries(found, self.path, self._account).bin_dir
        self._clear_remains()
        if fresh:
            self._make_data(bin_dir, lock_fd, durable=settings.get("fsync", "on") not in _OFF)
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(bin_dir / "postgres"), "-D", str(self.data), "-k", self._make_socket_dir(), *options]
        child = self._spawn(command, lock_fd)
        self._log(
            logging.INFO, "postgres_launched", f"Postgres {found.version} was launched", version=found.version
        )
        return child

    def shut_down(self, server: Postmaster, limit_s: float) -> None:
        """Stop the server; after `limit_s` seconds without a checkpoint, so that its next start recovers.

        Raises:
            EmbeddedPostgresError: it does not stop at all.
        """
        for how, wait_s in ((signal.SIGINT, limit_s), (signal.SIGQUIT, _IMMEDIATE_LIMIT_S)):
            with suppress(ProcessLookupError):
                os.kill(server.pid, how)
            if wait_for(lambda: not is_postmaster(server.pid, self.data), wait_s):
                break
        else:
            raise EmbeddedPostgresError(
                f"Postgres (process {server.pid}) in {self.path} does not stop. {self.end_of_log()}"
            )
        for child in _children:
            if child.pid == server.pid:
                child.wait(limit_s)
        self._remove_short_socket_dir(server.socket_dir)
        self._log(logging.INFO, "postgres_stopped", "Postgres was stopped")

    def _log(self, level: int, event: str, sentence: str, **fields: str) -> None:
        extra = {"event": event, "data_dir": str(self.path), **fields}
        logger.log(level, f"{sentence}, in {self.path}", extra=extra)

    def end_of_log(self) -> str:
        """Return the last lines of the server's log since its launch."""
        with suppress(OSError), self.log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read()[-8000:].decode(errors="replace").splitlines()[-12:]
            return "\n".join([f"The last lines of {self.log_file}:", *(f"  {line}" for line in lines)])
        return f"Its log is {self.log_file}."

    def _let_in(self, account: Account) -> None:
        """Let the server's user enter the folder; it changes its owner only if all its files are ours."""
        if can_enter(self.path, account):
            return
        folders = [*reversed(self.path.parents), self.path]
        closed = next((each for each in folders if not can_enter(each, account)), self.path)
        about = closed.stat()
        if closed == self.path and about.st_uid == 0 and all(map(_OURS.fullmatch, os.listdir(closed))):
            os.chown(closed, account.uid, -1)
            return
        raise EmbeddedPostgresError(
            f"The data folder {self.path} cannot be used: Postgres refuses to run as root, and the user "
            f"{account.name!r}, as whom it would run, cannot enter {closed} (mode {about.st_mode & 0o777:o}, "
            f"owner {user_name(about.st_uid)!r}), whose permissions are left as they are. "
            f"Name no folder at all (root's default is usable), {ELSEWHERE}."
        )

    def _is_fresh(self, binaries: Binaries) -> bool:
        """Return whether there are no data yet; data of another version are an error and are not changed."""
        try:
            version = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            if self.data.exists() and os.listdir(self.data):
                raise EmbeddedPostgresError(
                    f"{self.data} is not empty and is no data directory of Postgres (it has no PG_VERSION). "
                    f"Move it away, {ELSEWHERE}."
                ) from None
            return True
        if version == str(binaries.major):
            return False
        other = binaries_of_major(int(version)) if version.isdigit() else None
        place = shlex.quote(str(other.bin_dir)) if other else f"<bin folder of a Postgres {version}>"
        raise EmbeddedPostgresError(
            f"The data in {self.data} were made by Postgres {version}, but the programs in "
            f"{binaries.bin_dir} ({binaries.source}) are Postgres {binaries.version}. Nothing was changed. "
            f"To continue with the data: export PYENGINE_PG_BIN={place}. To move them: dump them with it "
            f"(pg_dumpall) and restore them in another folder. To start with an empty database: {ELSEWHERE}."
        )

    def _clear_remains(self) -> None:
        """Remove the files of a killed server, which Postgres obeys if another process has its id now."""
        lines = _pid_file(self.data)
        if lines:
            said = "what a killed Postgres left is removed"
            self._log(logging.WARNING, "postgres_recovered", said, pid=lines[0])
        for left in (self.path / "run").glob(".s.PGSQL.*"):
            left.unlink()
        self._remove_short_socket_dir(lines[4] if len(lines) > 4 else "")
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _make_data(self, bin_dir: Path, lock_fd: int, *, durable: bool) -> None:
        """Make the data directory under another name and rename it, so that a partial one is never used."""
        unfinished = self.path / "data.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._make_folder(unfinished)
        command = [str(bin_dir / "initdb"), "-D", str(unfinished), "-U", "postgres", "-E", "UTF8"]
        # trust is for the socket, which is closed to other users of the system
        command += ["--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256"]
        child = self._spawn(command if durable else [*command, "--no-sync"], lock_fd)
        if not wait_for(lambda: child.poll() is not None, _INITDB_LIMIT_S):
            child.kill()
        if child.wait() != 0:
            raise EmbeddedPostgresError(f"initdb failed in {unfinished}. {self.end_of_log()}")
        unfinished.rename(self.data)
        if durable:
            fd = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid, follow_symlinks=False)

    def _make_socket_dir(self) -> str:
        """Return a folder for the socket whose path is short and has no special characters of a list."""
        folder = self.path / "run"
        plain = str(folder).isprintable() and not set(str(folder)) & set(',"')
        if not plain or len(os.fsencode(folder)) > _SOCKET_DIR_LIMIT:
            folder = Path(tempfile.mkdtemp(prefix="pyengine-pg-", dir="/tmp"))
        self._make_folder(folder)
        return str(folder)

    def _remove_short_socket_dir(self, name: str) -> None:
        folder = Path(name)
        if folder.parent == Path("/tmp") and folder.name.startswith("pyengine-pg-"):
            with suppress(OSError):
                for left in folder.glob(".s.PGSQL.*"):
                    left.unlink()
                folder.rmdir()

    def _spawn(self, command: list[str], lock_fd: int) -> subprocess.Popen[bytes]:
        """Run a program of Postgres in a session of its own, so that our Ctrl-C does not reach it."""
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_LIMIT:
            self.log_file.replace(self.path / "postgres.log.1")
        log_fd = self.open_file("postgres.log")
        try:
            self._log_start = os.fstat(log_fd).st_size
            library_path = os.environ.get("LD_LIBRARY_PATH")
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
                | ({"LD_LIBRARY_PATH": library_path} if library_path else {}),
                start_new_session=True,
                pass_fds=(lock_fd,),
                **(self._account.popen_args() if self._account else {}),
            )
        finally:
            os.close(log_fd)
        _children.append(child)
        return child
