"""Whether a change made anything slower: this commit and another one, raced against each other in one run.

    python -m benchmarks.commits --against REF --workload six --budget 45

Both decide about every workload with nothing known (a cache folder each), by their own code. Then, in three pairs of fresh
processes, each loads its own artifact and the two take turns on the same inputs. Shown are medians and the ratio of the other
commit's time to this one's (above 1: this commit is faster), what each ships and how far their answers are apart. The last
lines time what needs no model: `import bricolage` and `bricolage --help`, as whole processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency import select
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.costs.latency import Latency
from bricolage.device.host import host
from bricolage.measure.statistics import Ratio, paired_ratio
from bricolage.verify.compare import relative_error

ROOT = Path(__file__).resolve().parents[1]
_PAIRS = 3
_ROUNDS = 12
_TURN_S = 0.3
_STARTS = 15

_DECIDE = """
import sys, time
from bricolage.api.optimize import optimize
from bricolage.base.codec import encode
from bricolage.base.options import Options
import numpy as np
model, inputs, artifact, budget = sys.argv[1:5]
start = time.monotonic()
fast = optimize(model, Options(budget_s=float(budget)), inputs=dict(np.load(inputs)))
seconds = time.monotonic() - start
fast.save(artifact)
bucket = encode(fast.plan.buckets[0])  # which every commit writes alike
backends = dict.fromkeys(region["implementation"]["backend"] for region in bucket["regions"])
print("+".join(backends), len(bucket["regions"]), bucket["chosen"], f"{seconds:.1f}", sep="\\t")
"""

RUN = """
import json, sys, time
import numpy as np
import bricolage
artifact, inputs, answer = sys.argv[1:4]
start = time.perf_counter()
fast = bricolage.load(artifact)
loaded = time.perf_counter() - start
given = dict(np.load(inputs))
np.savez(answer, **fast.run(given))
fast.run(given)
print(json.dumps(loaded), flush=True)
for line in sys.stdin:
    end, times = time.perf_counter() + float(line), []
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        fast.run(given)
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps(times), flush=True)
"""


@dataclass(frozen=True)
class Side:
    """One of the two commits: its source, and a cache folder of its own."""

    source: Path
    cache: Path

    def start(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        """A process that runs this commit's code."""
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(self.source), "BRICOLAGE_CACHE": str(self.cache)},
            cwd=self.cache,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def answer(self, code: str, *arguments: object) -> str:
        """What a process of this commit prints.

        Raises:
            RuntimeError: it fails.
        """
        process = self.start(code, *arguments)
        printed, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{self.source}: exit code {process.returncode}")
        return printed


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """A work tree of another commit."""
    tree = folder / "tree"
    subprocess.run(["git", "worktree", "add", "--detach", "-q", str(tree), commit], cwd=ROOT, check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def compare(name: str, sides: Sequence[Side], budget_s: float, folder: Path) -> dict[str, Any]:
    """Decides about one workload with both commits and races the two artifacts; the other commit comes first."""
    workload = workloads()[name]
    model, inputs = export(workload), folder / f"{name}.npz"
    np.savez(inputs, **workload.example_inputs(0))  # type: ignore[arg-type]  # its stub takes a name for a flag
    artifacts = [folder / f"{name}-{i}.bricolage" for i in range(len(sides))]
    answers = [folder / f"{name}-{i}.answer.npz" for i in range(len(sides))]
    decided = [
        side.answer(_DECIDE, model, inputs, artifact, budget_s).splitlines()[-1].split("\t")
        for side, artifact in zip(sides, artifacts, strict=True)
    ]
    turns = take_turns(
        [partial(side.start, RUN, a, inputs, y) for side, a, y in zip(sides, artifacts, answers, strict=True)]
    )
    old, new = (np.load(path) for path in answers)
    apart = max(relative_error([new[k]], [old[k]]) for k in old.files)
    return {
        "workload": name,
        "ships": [f"{words[2]} ({words[1]} regions)" if words[1] != "1" else words[2] for words in decided],
        "decide_s": [float(words[3]) for words in decided],
        "load_s": list(turns.load_s),
        "ms": list(turns.ms),
        "ratio": [turns.ratio.value, turns.ratio.low, turns.ratio.high],
        "apart": apart,
    }


@dataclass(frozen=True)
class Turns:
    """What came of two programs that took turns; of pairs, the first program comes first."""

    ms: tuple[float, float]
    load_s: tuple[float, float]
    ratio: Ratio
    """The first one's time over the second one's."""


def take_turns(starters: Sequence[Callable[[], subprocess.Popen[str]]]) -> Turns:
    """Two programs (processes that run `RUN`) in turns, in three pairs of fresh processes.

    Raises:
        RuntimeError: one ends.
    """
    rounds: list[list[list[float]]] = [[], []]
    processes_of: list[int] = []
    loads: list[list[float]] = [[], []]
    for pair in range(_PAIRS):
        runners = [start() for start in starters]
        try:
            for i, runner in enumerate(runners):
                loads[i].append(json.loads(_line(runner)))
            for turn in range(_ROUNDS):
                for i in (0, 1) if turn % 2 else (1, 0):
                    rounds[i].append(json.loads(_turn(runners[i])))
                processes_of.append(pair)
            for runner in runners:
                runner.communicate()
        finally:
            for runner in runners:
                runner.kill()
    (first, second), (one, other) = (
        (Latency.of_rounds(times).median_ms for times in rounds),
        map(statistics.median, loads),
    )
    return Turns((first, second), (one, other), paired_ratio(rounds[0], rounds[1], processes=processes_of))


def _turn(process: subprocess.Popen[str]) -> str:
    """What a process prints of its turn.

    Raises:
        RuntimeError: it ended.
    """
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended before it was asked: what it ended with is told below
        print(_TURN_S, file=process.stdin, flush=True)
    return _line(process)


def _line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints.

    Raises:
        RuntimeError: it ended.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a runner ended with {process.wait()}")
    return line


def starts(sides: Sequence[Side], code: str) -> list[float]:
    """Seconds of a whole process on both sides, interleaved: medians."""
    times: list[list[float]] = [[], []]
    for _ in range(_STARTS):
        for i, side in enumerate(sides):
            begin = time.perf_counter()
            side.answer(code)
            times[i].append(time.perf_counter() - begin)
    return [statistics.median(t) for t in times]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table: the other commit before, this one now."""
    lines = [
        "| workload | before ships | now ships | before ms | now ms | before / now [95 % CI] | answers apart | decide s | load s |",
        "|---|---|---|---:|---:|---|---:|---|---|",
    ]
    for r in rows:
        (a, b), (value, low, high) = r["ms"], r["ratio"]
        (d, e), (f, g) = r["decide_s"], r["load_s"]
        lines.append(
            f"| {r['workload']} | {r['ships'][0]} | {r['ships'][1]} | {a:.3g} | {b:.3g} | **{value:.3f}** [{low:.3f}, {high:.3f}] "
            f"| {r['apart']:.1e} | {d:.0f} → {e:.0f} | {f:.2f} → {g:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=__doc__.partition("\n")[0])
    parser.add_argument("--against", required=True, metavar="REF", help="the other commit")
    parser.add_argument("--workload", default="six", help="names or families, separated by commas")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds for each decision")
    parser.add_argument("--output", type=Path, help="also write the rows as JSON here, after each")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="commits-") as words:
        folder = Path(words)
        with checkout(given.against, folder) as tree:
            sides = [Side(tree / "src", folder / "before"), Side(ROOT / "src", folder / "now")]
            for side in sides:
                side.cache.mkdir()
            for name in select(given.workload.split(",")):
                rows.append(compare(name, sides, given.budget, folder))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
                keep({"hardware": str(host()), "rows": rows}, given.output)
            imports = starts(sides, "import bricolage")
            bare = starts(sides, "pass")
            helps = starts(
                sides, "import sys; sys.argv = ['bricolage', '--help']; from bricolage.cli.main import main; main()"
            )
    print(f"{host()}; before = {given.against}\n\n{table(rows)}\n")
    for label, (before, now), (b, n) in (("import bricolage", imports, bare), ("bricolage --help", helps, (0.0, 0.0))):
        print(f"{label}: {(before - b) * 1e3:.0f} ms before, {(now - n) * 1e3:.0f} ms now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
