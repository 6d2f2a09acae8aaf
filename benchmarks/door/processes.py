"""Rows from child processes that may die."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bricolage.base import scratch

_OVER = "time is over"
Report = Callable[[str, str, str], None]
"""Is told a name, its outcome and the reason."""


def apart(
    what: str,
    names: Sequence[str],
    words: Sequence[str],
    limit_s: float,
    report: Report,
    until: float | None = None,
) -> None:
    """Has `python -m benchmarks.door --child WHAT` try things by name, and reports each. A child that dies, or is silent for
    `limit_s` seconds, has broken at the first name of which nothing was heard; the next goes on behind it. `until`: of the
    monotonic clock, when no other name is begun; they come in random order then, always the same."""
    waiting = list(names) if until is None else random.Random(0).sample(list(names), len(names))
    with scratch.using(scratch.temporary()) as folder:
        while waiting:
            asked, errors = folder / "names.json", folder / "errors.txt"
            asked.write_text(json.dumps(waiting), encoding="utf-8")
            command = [sys.executable, "-m", "benchmarks.door", "--child", what, "--names", str(asked), *words]
            with errors.open("w", encoding="utf-8") as log:
                heard, reason = _listen(command, log.fileno(), limit_s, report, until or math.inf)
            waiting = [name for name in waiting if name not in heard]
            if reason == _OVER:
                return
            if waiting and not reason.startswith("ended"):
                report(waiting.pop(0), "broken", f"{reason}: {_last_line(errors)}")


def _listen(command: Sequence[str], log: int, limit_s: float, report: Report, until: float) -> tuple[set[str], str]:
    """Names of which a child told, and how it ended."""
    import selectors

    heard: set[str] = set()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, encoding="utf-8") as child,
        selectors.DefaultSelector() as selector,
    ):
        assert child.stdout is not None
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.select(limit_s):
            line = child.stdout.readline()
            if not line:
                code = child.wait()
                return heard, "ended" if code == 0 else f"exit code {code}"
            if line.startswith("["):
                name, outcome, reason = json.loads(line)
                heard.add(name)
                report(name, outcome, reason)
                if time.monotonic() > until:
                    child.kill()
                    return heard, _OVER
        child.kill()
        return heard, f"no answer in {limit_s:.0f} s"


def tell(name: str, outcome: str, reason: str = "") -> None:
    """Tells the parent of one thing."""
    print(json.dumps([name, outcome, " ".join(reason.split())[:300]]), flush=True)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace", encoding="utf-8").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"
