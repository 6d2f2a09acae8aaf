"""Slurm's commands, each with a time-out. `squeue` and `sinfo` answer in JSON, which they do since Slurm 21.08."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bricolage.cluster.slurm.queue import SlurmQueue, queue_of
from bricolage.errors import SlurmAnswer, SlurmRefused, SlurmTooOld, SlurmUnavailable

OLDEST = (21, 8)
"""The first version whose commands write JSON."""
_VERSION = re.compile(r"\b(\d+)\.(\d+)(?:\.\d+)?")
_LOCALE = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}

Run = Callable[[Sequence[str]], "CommandAnswer"]


@dataclass(frozen=True)
class CommandAnswer:
    """Of one command."""

    code: int
    output: str
    errors: str = ""


@dataclass
class SlurmClient:
    """Speaks to the Slurm that `SLURM_CONF`, or this machine's configuration, names.

    Raises, in each method:
        SlurmUnavailable: a command is not installed, or does not answer.
        SlurmTooOld: it is older than 21.08.
        SlurmAnswer: it says something that cannot be read.
    """

    timeout_s: float = 30.0
    run: Run | None = None
    """Runs a command; by default on this machine."""
    clock: Callable[[], float] = time.time
    changes: int = field(default=0, init=False)
    """That were made."""
    _checked: str = field(default="", init=False)

    def version(self) -> str:
        """Of the commands.

        Raises:
            SlurmTooOld: it writes no JSON.
        """
        if not self._checked:
            output = self._ask(("squeue", "--version")).strip()
            match = _VERSION.search(output)
            if match is None:
                raise SlurmAnswer(command="squeue --version", reason=f"it prints no version: '{output[:80]}'")
            if (int(match[1]), int(match[2])) < OLDEST:
                raise SlurmTooOld(found=match[0], oldest=".".join(f"{part:02d}" for part in OLDEST))
            self._checked = match[0]
        return self._checked

    def queue(self) -> SlurmQueue:
        """Jobs and nodes as they are now."""
        self.version()
        jobs = self._json(("squeue", "--json", "--all", "--states=all"), "jobs")
        nodes = self._json(("sinfo", "--json", "--all"), "nodes") if self._old_nodes() else self._nodes()
        return queue_of(jobs, nodes, self.clock())

    def _old_nodes(self) -> bool:
        """Since 23.02 `sinfo --json` lists groups of nodes; `scontrol show nodes --json`, which came with it, lists nodes."""
        major, minor = (int(part) for part in self._checked.split(".")[:2])
        return (major, minor) < (23, 2)

    def _nodes(self) -> list[object]:
        return self._json(("scontrol", "show", "nodes", "--json"), "nodes")

    def history(self, days: int) -> str | None:
        """What accounting says of jobs that ended, as `bricolage cluster replay` reads it; None where accounting is off."""
        columns = "JobID,JobName,User,Partition,Submit,Elapsed,Timelimit,State,AllocTRES,ReqTRES"
        words = ("sacct", "--parsable2", "--allusers", "--allocations", "--duplicates", f"--format={columns}")
        answer = self._run((*words, f"--starttime=now-{days}days", "--endtime=now"))
        if answer.code:
            if "disabled" in answer.errors or "not enabled" in answer.errors:
                return None
            raise SlurmUnavailable(command="sacct", reason=_line(answer))
        return answer.output

    def update(self, job: str, settings: Sequence[tuple[str, str]]) -> None:
        """`scontrol update` of one job, all settings at once.

        Raises:
            SlurmRefused: it did not.
        """
        self._do(("scontrol", "update", f"JobId={job}", *(f"{key}={value}" for key, value in settings)))

    def hold(self, job: str) -> None:
        """The job waits until it is released."""
        self._do(("scontrol", "hold", job))

    def release(self, job: str) -> None:
        """The job may start."""
        self._do(("scontrol", "release", job))

    def _do(self, words: Sequence[str]) -> None:
        answer = self._run(words)
        # Of an array whose tasks differ it leaves with an error, and says of each task that there was none.
        if answer.code and not _line(answer).endswith("No error"):
            done = f"; {self.changes} changes before it stand" if self.changes else "; nothing was changed"
            raise SlurmRefused(command=" ".join(words), reason=_line(answer), done=done)
        self.changes += 1

    def _json(self, words: Sequence[str], key: str) -> list[object]:
        text = self._ask(words)
        command = " ".join(words)
        try:
            document = json.loads(text)
        except ValueError as error:
            raise SlurmAnswer(command=command, reason=f"it is no JSON ({error})") from error
        rows = document.get(key) if isinstance(document, dict) else None
        messages = document.get("errors") if isinstance(document, dict) else None
        if messages:  # a controller that does not answer leaves an empty list, and the exit code 0
            first = messages[0] if isinstance(messages, list) else messages
            words = (
                [str(first[key]) for key in ("description", "error") if first.get(key)]
                if isinstance(first, dict)
                else []
            )
            raise SlurmUnavailable(command=command, reason=": ".join(words) or str(first))
        if not isinstance(rows, list):
            raise SlurmAnswer(command=command, reason=f"it has no list '{key}'")
        return rows

    def _ask(self, words: Sequence[str]) -> str:
        answer = self._run(words)
        if answer.code:
            raise SlurmUnavailable(command=words[0], reason=_line(answer))
        return answer.output

    def _run(self, words: Sequence[str]) -> CommandAnswer:
        if self.run is not None:
            return self.run(words)
        try:
            done = subprocess.run(
                words, env={**os.environ, **_LOCALE}, capture_output=True, timeout=self.timeout_s, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise SlurmUnavailable(command=words[0], reason="the command is not installed here") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            late = isinstance(error, subprocess.TimeoutExpired)
            reason = f"no answer within {self.timeout_s:g} s" if late else str(error)
            raise SlurmUnavailable(command=words[0], reason=reason) from error
        return CommandAnswer(
            done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )


def _line(answer: CommandAnswer) -> str:
    """The last line that says why."""
    lines = [line.strip() for line in (answer.errors or answer.output).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {answer.code}"
