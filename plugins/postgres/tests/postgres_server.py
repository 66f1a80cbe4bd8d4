"""A real PostgreSQL server for tests: on loopback, on a free port, in a folder of its own, and stopped at the end."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

PASSWORD = "hunter2/of:the@store"
_START_SECONDS = 60.0
_SETTINGS = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "log_min_messages=log",
)


class PostgresServer:
    """A server that can be stopped, frozen, and started again on the same port."""

    def __init__(self, programs: Path, folder: str, settings: tuple[str, ...] = ()) -> None:
        self._settings = (*_SETTINGS, *settings)
        self.port = free_port()
        self._programs = programs
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        # PostgreSQL does not run as root: there it runs as the user that its package makes, or as nobody.
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    @property
    def conninfo(self) -> str:
        return self.conninfo_of("tester", PASSWORD)

    def conninfo_of(self, user: str, password: str, database: str = "postgres", **more: str) -> str:
        return psycopg.conninfo.make_conninfo(
            host="127.0.0.1", port=self.port, user=user, password=password, dbname=database, **more
        )

    def make(self) -> None:
        """The files of a server, and a user with a password."""
        Path(self._folder, "password").write_text(PASSWORD)
        command = ["initdb", "-D", f"{self._folder}/data", "-U", "tester", "-A", "scram-sha-256", "-E", "UTF8"]
        self._ran([*command, f"--pwfile={self._folder}/password", "--locale=C", "--no-sync"])

    def start(self) -> None:
        command = [str(self._programs / "postgres"), "-D", f"{self._folder}/data", "-p", str(self.port)]
        command += ["-h", "127.0.0.1", "-c", "unix_socket_directories="]
        command += [part for setting in self._settings for part in ("-c", setting)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=self._folder, **self._who)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"postgres stopped at once, with code {self._process.returncode}")
            try:
                self.asked("SELECT 1")
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError(f"postgres did not answer within {_START_SECONDS:g} seconds")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self.thaw()
            process.send_signal(signal.SIGINT)  # which ends its connections, too
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)
                process.wait()

    def kill(self) -> None:
        """All of it ends at once, as a machine does."""
        process, self._process = self._process, None
        if process is not None:
            children = [row[0] for row in self.asked("SELECT pid FROM pg_stat_activity")]
            for each in (process.pid, *children):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            process.wait()

    def dumped(self) -> bytes:
        """What ``pg_dump`` writes of the table."""
        program = str(self._programs / "pg_dump")
        command = [program, "--dbname", self.conninfo, "--table", "chatstack_decisions", "--format", "plain"]
        dump = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
        # Records stand there in hexadecimal digits.
        return b"".join(bytes.fromhex(found.decode()) for found in re.findall(rb"\\\\x((?:[0-9a-f]{2})+)", dump))

    def files(self, folder: str) -> list[bytes]:
        """The content of all files in a folder of the server's data."""
        return [each.read_bytes() for each in Path(self._folder, "data", folder).rglob("*") if each.is_file()]

    def freeze(self) -> None:
        """It accepts connections, as the kernel does that, and answers nothing, the stores' connections included."""
        assert self._process is not None
        self._frozen = [self._process.pid, *(row[0] for row in self.stores())]
        for each in self._frozen:
            os.kill(each, signal.SIGSTOP)

    def thaw(self) -> None:
        for each in self._frozen:
            os.kill(each, signal.SIGCONT)
        self._frozen = []

    def stores(self) -> list[tuple[int]]:
        """The processes in the server that serve stores."""
        return self.asked("SELECT pid FROM pg_stat_activity WHERE application_name = 'chatstack'")

    def asked(self, statement: Any, *given: Any) -> list[Any]:
        """The answer to a statement, by a connection of its own."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            found = connection.execute(statement, given or None)
            return found.fetchall() if found.description is not None else []

    def _ran(self, command: list[str]) -> None:
        program = str(self._programs / command[0])
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, cwd=self._folder, check=False, timeout=120, **self._who
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')}")


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgresServer]:
    """Make and start one, and stop it. Skips where the programs are not installed; on CI that is a failure."""
    programs = _programs()
    if programs is None:
        missing = "PostgreSQL's postgres and initdb are not installed (on Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer(programs, folder, settings)
        try:
            server.make()
            server.start()
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def _programs() -> Path | None:
    """Where they are: Debian keeps them out of the path, in a folder for each version."""
    found = shutil.which("initdb")
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name), reverse=True)
    for folder in ([] if found is None else [Path(found).resolve().parent]) + candidates:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    return None


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
