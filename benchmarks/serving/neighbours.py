"""How executables stand neighbours: other processes on the same cores, other executables and other runtimes in the same process.

    python -m benchmarks.serving.neighbours --workload six --json
    python -m benchmarks.serving.neighbours --workload resnet-50 --neighbours 1-nice0,2-nice19
    python -m benchmarks.serving.neighbours --several --workload dcgan,light-squeezenet

For each workload bricolage decides as for a user (`--backend native` keeps it to one backend), and so for ONNX Runtime and
OpenVINO alone, which run at the settings for latency that `benchmarks/README.md` names. Each runs in a process of its own.
Beside neighbours that compute without pause, they take turns of whole calls, one after another, while the others are
stopped: so each is alone with the same neighbours. Shown are the median and the 99th percentile of all calls, and the ratios
of the peers' to ours: above 1, ours is faster. The interval is that of the medians of rounds.

With `--several`, what executables cost in one process: called in turn, and from a thread each, against the sum of what each
takes in a process of its own; and one in turn with PyTorch's and NumPy's matrix products, which have pools of threads of
their own, against each of them alone. Above 1, the company costs.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency import select
from benchmarks.tools.load import KINDS, busy
from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.base.options import Options, available_cores
from bricolage.device.host import host
from bricolage.measure.statistics import paired_ratio

_OURS, _PEERS = "bricolage", ("onnxruntime", "openvino")
_USUAL = ("quiet", "1-nice0", "2-nice0", "4-nice0", "1-nice19", "2-nice19")
_LEAST_CALLS = 5
_SIDE = 768
"""Rows of the matrix products: some milliseconds."""

_RUN = """
import json, sys, threading, time
import numpy as np
import bricolage
pairs = json.loads(sys.argv[1])
works = [(bricolage.load(a), dict(np.load(i))) for a, i in pairs]
calls = [(lambda f=f, given=given: f.run(given)) for f, given in works]

def product(library):
    if library == "numpy":
        a = np.random.default_rng(0).normal(size=(SIDE, SIDE)).astype(np.float32)
        return lambda: a @ a
    import torch
    torch.set_num_threads(int(sys.argv[2]))
    b = torch.randn(SIDE, SIDE)
    return lambda: torch.mm(b, b)

products = {name: product(name) for name in sys.argv[3].split(",") if name}
clock = time.perf_counter

def timed(call):
    start = clock()
    call()
    return (clock() - start) * 1e3

def in_turn(calls, seconds):
    # Milliseconds of each call, by whom: all once more until the time is over.
    found, end = [[] for _ in calls], clock() + seconds
    while clock() < end or len(found[0]) < LEAST:
        for times, call in zip(found, calls):
            times.append(timed(call))
    return found

def from_threads(calls, count):
    # Milliseconds for so many calls of each, from a thread each.
    threads = [threading.Thread(target=lambda call=call: [call() for _ in range(count)]) for call in calls]
    def run():
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    return timed(run)

for call in [*calls, *products.values()]:
    call()
    call()
print("ready", flush=True)
for line in sys.stdin:
    word, amount, *names = line.split()
    if word == "threads":
        answer = from_threads(calls, int(amount))
    else:
        chosen = [products[n] if n in products else calls[int(n)] for n in names] or calls
        answer = in_turn(chosen, float(amount))
    print(json.dumps(answer), flush=True)
""".replace("SIDE", str(_SIDE)).replace("LEAST", str(_LEAST_CALLS))


class Runner:
    """A process that has loaded something and calls it when it is asked to; stopped as long as it is not."""

    def __init__(self, code: str, words: Sequence[str]) -> None:
        """Of a Python program and its arguments: it prints "ready", and then an answer in JSON to each line that it is given.

        Raises:
            RuntimeError: it ended before it was ready.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._line()
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, *words: object) -> Any:
        """Its answer to a line of words.

        Raises:
            RuntimeError: it ended.
        """
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        print(*words, file=self._process.stdin, flush=True)
        answer = self._line()
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(answer)

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a runner ended with {self._process.wait()}")
        return line


@contextmanager
def started(code: str, words: Sequence[str]) -> Iterator[Runner]:
    """A runner as long as the context lasts."""
    runner = Runner(code, words)
    try:
        yield runner
    finally:
        runner.end()


@contextmanager
def running(pairs: Sequence[tuple[Path, Path]], products: Sequence[str] = ()) -> Iterator[Runner]:
    """A runner of artifacts with the inputs of each, and of the matrix products of libraries. It is asked `turn SECONDS [NAME ...]`
    or `threads COUNT`."""
    artifacts = json.dumps([[str(path) for path in pair] for pair in pairs])
    with started(_RUN, [artifacts, str(available_cores()), ",".join(products)]) as runner:
        yield runner


def decided(name: str, contestant: str, given: argparse.Namespace, folder: Path) -> tuple[Path, Path, str]:
    """The artifact of a workload, its inputs, and what it ships; `contestant` is a backend, or bricolage."""
    workload = workloads()[name]
    inputs = workload.example_inputs(0)
    alone = tuple(given.backend.split(",")) if given.backend else None
    options = Options(
        precision="highest",
        budget_s=given.budget,
        backends=alone if contestant == _OURS else (contestant,),
        threads=given.threads,
    )
    fast = optimize(export(workload), options, inputs=inputs)
    kept = folder / f"{name}.npz"
    np.savez(kept, **inputs)  # type: ignore[arg-type]  # its stub takes a name for a flag
    return fast.save(folder / f"{name}-{contestant}.bricolage"), kept, fast.plan.buckets[0].race.chosen


def beside(name: str, kinds: Sequence[str], given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row for each kind of neighbours: medians and 99th percentiles of all contestants, and the ratios."""
    rows = []
    with ExitStack() as stack:
        artifacts = {one: decided(name, one, given, folder) for one in (_OURS, *_PEERS)}
        runners = {one: stack.enter_context(running([pair[:2]])) for one, pair in artifacts.items()}
        for kind in kinds:
            rounds: dict[str, list[list[float]]] = {one: [] for one in runners}
            with busy(kind):
                for turn in range(given.rounds):
                    for one in list(runners)[:: 1 if turn % 2 else -1]:
                        (times,) = runners[one].ask("turn", given.seconds)
                        rounds[one].append(times)
            rows.append({"workload": name, "neighbours": kind, "ships": artifacts[_OURS][2], **compared(rounds)})
            print(words_of(rows[-1]), file=sys.stderr, flush=True)
    return rows


def compared(rounds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Medians, 99th percentiles and their ratios, from the milliseconds of each round of each contestant."""
    calls = {one: np.concatenate([np.asarray(times) for times in found]) for one, found in rounds.items()}
    p99 = {one: float(np.quantile(times, 0.99)) for one, times in calls.items()}
    median = {one: float(np.median(times)) for one, times in calls.items()}
    paired = {one: paired_ratio(rounds[one], rounds[_OURS]) for one in rounds if one != _OURS}
    return {
        "calls": {one: len(times) for one, times in calls.items()},
        "median_ms": median,
        "p99_ms": p99,
        "median_ratio": {one: median[one] / median[_OURS] for one in paired},
        "median_ratio_of_rounds": {one: [ratio.value, ratio.low, ratio.high] for one, ratio in paired.items()},
        "p99_ratio": {one: p99[one] / p99[_OURS] for one in paired},
    }


def words_of(row: Mapping[str, Any]) -> str:
    """A row in one line."""
    parts = [f"{row['workload']}, {row['neighbours']}: {_OURS} ({row['ships']})"]
    parts[0] += f" {row['median_ms'][_OURS]:.3g} ms, p99 {row['p99_ms'][_OURS]:.3g}"
    for one in row["median_ratio"]:
        _, low, high = row["median_ratio_of_rounds"][one]
        parts.append(
            f"{one} {row['median_ms'][one]:.3g}, p99 {row['p99_ms'][one]:.3g}: {row['median_ratio'][one]:.2f} times, p99"
            f" {row['p99_ratio'][one]:.2f} times (medians of rounds [{low:.2f}, {high:.2f}])"
        )
    return "; ".join(parts)


def several(names: Sequence[str], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What all workloads cost in one process, and the first of them beside the pools of other libraries."""
    products = ("torch", "numpy")
    with ExitStack() as stack:
        pairs = [decided(name, _OURS, given, folder)[:2] for name in names]
        apart = [stack.enter_context(running([pair])) for pair in pairs]
        together = stack.enter_context(running(pairs))
        pools = {one: stack.enter_context(running(pairs[:1], [one])) for one in products}
        bare = {one: stack.enter_context(running([], [one])) for one in products}
        turns, threads = list[float](), list[float]()
        company: dict[str, list[list[float]]] = {one: [[], []] for one in products}
        for _ in range(given.rounds):
            alone = [statistics.median(runner.ask("turn", given.seconds)[0]) for runner in apart]
            shared = [statistics.median(times) for times in together.ask("turn", given.seconds * len(names))]
            turns.append(sum(shared) / sum(alone))
            count = max(_LEAST_CALLS, int(given.seconds * 1e3 / sum(alone)))
            threads.append(together.ask("threads", count) / sum(runner.ask("threads", count) for runner in apart))
            for one in products:
                theirs = statistics.median(bare[one].ask("turn", given.seconds, one)[0])
                ours, beside_ours = pools[one].ask("turn", given.seconds, "0", one)
                company[one][0].append(statistics.median(ours) / alone[0])
                company[one][1].append(statistics.median(beside_ours) / theirs)
    return {
        "workloads": list(names),
        "in_turn": statistics.median(turns),
        "from_threads": statistics.median(threads),
        **{f"ours_beside_{one}": statistics.median(company[one][0]) for one in products},
        **{f"{one}_beside_ours": statistics.median(company[one][1]) for one in products},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.neighbours", description="executables beside others"
    )
    parser.add_argument("--workload", default="six", help="names or families, separated by commas")
    parser.add_argument("--neighbours", default=",".join(_USUAL), help=f"kinds of {', '.join(KINDS)}")
    parser.add_argument(
        "--several", action="store_true", help="several executables and runtimes in one process instead"
    )
    parser.add_argument("--backend", default="", help="backends that bricolage may use; default: all")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds to decide about a workload")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a contestant's turn in a round")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args(arguments)
    kinds = given.neighbours.split(",")
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"there are no neighbours '{kind}'; there are: {', '.join(KINDS)}")
    names = select(given.workload.split(","))
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        if given.several:
            row = several(names, given, Path(folder))
            print(json.dumps(row) if given.json else "\n".join(f"{key}: {value}" for key, value in row.items()))
            return 0
        rows = [row for name in names for row in beside(name, kinds, given, Path(folder))]
    if given.json:
        print(json.dumps({"machine": str(host()), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
