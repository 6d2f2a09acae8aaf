"""A PostgreSQL server of the tests' own, where Debian's package (or another installation) is there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_PATIENCE_S = 60.0
_USER = "costs"


def programs() -> Path | None:
    """The folder of the newest server's programs; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: float(file.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class PostgresqlServer:
    """A server that answers on a socket in a folder of its own, and on no port."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._user = (
            "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        )  # it refuses to run as root
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self._folder, self._user)
        self.url = f"postgresql://{_USER}@/postgres?host={self._folder}"
        made = self._begin(
            "initdb", "-D", str(self._data), "-U", _USER, "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"
        )
        assert made.wait(_PATIENCE_S) == 0
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        import psycopg

        self._process = self._begin(
            "postgres", "-D", str(self._data), "-k", str(self._folder), "-c", "listen_addresses=", "-F"
        )
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """At once: connections are cut."""
        assert self._process is not None
        self._process.send_signal(2)  # SIGINT: a fast shutdown
        self._process.wait(_PATIENCE_S)

    def emptied(self) -> str:
        """Its address, after everything in it was dropped."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SET lock_timeout = 20000"
            )  # what holds a lock was left open by a test: no reason to hang
            connection.execute("DROP SCHEMA IF EXISTS bricolage CASCADE")
        return self.url

    def remove(self) -> None:
        """Ends it, and removes its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _begin(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        as_user = {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid} if os.geteuid() == 0 else {}
        return subprocess.Popen(
            [str(self._binaries / program), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            **as_user,  # type: ignore[call-overload]
        )
