"""Runs the campaigns in turn for some minutes; the last line is the figure of all runs in this folder."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz.campaigns import Campaign, campaigns
from benchmarks.fuzz.ledger import Block, Ledger, read, words
from bricolage.device.host import host

_SHORTEST_SLICE_S, _ROUNDS = 60.0, 3
"""Time of one campaign before the next has its turn: so that each has so many turns, or at least so long."""
_PATIENCE_S = 1800.0
"""Longest time of a block, after which it counts as hanging."""


def main() -> int:
    """The command; its exit code is 1 where something was found that is not looked through yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="what was tried and found is kept there")
    parser.add_argument("--campaign", help="only these, separated by commas")
    parser.add_argument("--list", action="store_true", help="name the campaigns of this processor")
    given = parser.parse_args()
    every = campaigns()
    chosen = {name: every[name] for name in given.campaign.split(",")} if given.campaign else every
    if given.list:
        print("\n".join(every))
        return 0
    folder: Path = given.folder.resolve()
    ledgers = {name: Ledger(folder / f"{name}.jsonl") for name in chosen}
    end = time.monotonic() + 60 * given.minutes
    turn = max(_SHORTEST_SLICE_S, 60 * given.minutes / _ROUNDS / len(chosen))
    spent = dict.fromkeys(chosen, 0.0)
    while (left := end - time.monotonic()) > 0:
        name = min(chosen, key=lambda one: spent[one] / chosen[one].share)
        started = time.monotonic()
        run(chosen[name], ledgers[name], folder, min(left, turn))
        spent[name] += time.monotonic() - started
        print(words([(name, ledgers[name].total)]), flush=True)
    totals = {path.stem: Ledger(path).total for path in sorted(folder.glob("*.jsonl"))}
    print(f"{host()}: {words(totals.items())}")
    found = sum(len(block.findings) for block in totals.values())
    print(figure(totals, found))
    return 1 if found else 0


def figure(totals: dict[str, Block], found: int) -> str:
    """All in one line."""
    graphs = sum(block.tested for name, block in totals.items() if name.startswith("optimize"))
    regions = {name.removeprefix("regions-"): b.tested for name, b in totals.items() if name.startswith("regions-")}
    told = ", ".join(f"{count} on {name}" for name, count in regions.items())
    others = ", ".join(
        f"{block.tested} {name}" for name, block in totals.items() if not name.startswith(("optimize", "regions-"))
    )
    return f"fuzz: {graphs} graphs through optimize; regions: {told}; {others}; {found} findings"


def run(campaign: Campaign, ledger: Ledger, folder: Path, seconds: float) -> None:
    """Blocks of one campaign for so long. One that ends the process, or takes too long, is a finding of its seeds."""
    end = time.monotonic() + seconds
    size = campaign.block
    while time.monotonic() < end:
        trying = range(ledger.next, ledger.next + size)
        worker = _start(campaign, ledger.next, size, folder)
        try:
            for line in _lines(worker):
                told = json.loads(line)
                if "trying" in told:
                    trying = range(told["trying"][0], sum(told["trying"]))
                    continue
                ledger.add(read(line))
                trying = range(ledger.next, ledger.next + size)
                if time.monotonic() > end:
                    return
            code = worker.wait()
        finally:
            worker.kill()
            worker.wait()
        if code == 0:
            continue  # it has tried all its blocks
        if size > 1 and len(trying) > 1:
            size = 1  # again, one by one
        else:
            lost = folder / "findings" / f"{campaign.name}-{trying.start}-process"
            lost.mkdir(parents=True, exist_ok=True)
            again = f"python -m benchmarks.fuzz.worker {campaign.name} {trying.start} 1 1 ."
            variables = " ".join(f"{key}={value}" for key, value in campaign.environment.items())
            why = f"# the process ended with {code} (-9: it was silent for too long)"
            (lost / "script.sh").write_text(f"{why}\n{variables} {again}\n", encoding="utf-8")
            shutil.copyfile(folder / f"{campaign.name}.log", lost / "log.txt")
            ledger.add(Block(trying.start, 1, tested=1, findings=[lost.name]))
            size = campaign.block


def _start(campaign: Campaign, first: int, size: int, folder: Path) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "benchmarks.fuzz.worker",
        campaign.name,
        str(first),
        str(10**6),
        str(size),
        str(folder),
    ]
    log = folder / f"{campaign.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as errors:
        environment = {**os.environ, **campaign.environment}
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            encoding="utf-8",
        )


def _lines(worker: subprocess.Popen[str]) -> Iterator[str]:
    """What it writes; it is killed where it has written nothing for too long."""
    assert worker.stdout is not None
    while True:
        timer = threading.Timer(_PATIENCE_S, worker.kill)
        timer.start()
        line = worker.stdout.readline()
        timer.cancel()
        if not line:
            return
        yield line


if __name__ == "__main__":
    sys.exit(main())
