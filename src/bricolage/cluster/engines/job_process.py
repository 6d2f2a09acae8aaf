"""One process of a job, kept by a small process of its own (`supervisor.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class KeptProcess:
    """A command that runs.

    Raises:
        OSError: its output cannot be written, or no process can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: str,
        variables: Mapping[str, str],
        lock: str,
        output: str,
        grace_s: float,
    ) -> None:
        with open(output, "ab") as file:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), lock, str(grace_s), *command],
                cwd=directory,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._supervisor.pid

    def exit_code(self) -> int | None:
        """The command's; None while it runs."""
        return self._supervisor.poll()

    def save(self) -> None:
        """Asks it to save and to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it at once, with all that it has started."""
        self._send(signal.SIGTERM)
        self._send(signal.SIGINT)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._supervisor.send_signal(number)
