"""Models that left Python as C libraries, beside the same plan in Python and the C interfaces of ONNX Runtime and OpenVINO.

    python -m benchmarks.exported --workload resnet-50,minilm-l6 --onnxruntime-include FOLDER --json
    python -m benchmarks.exported --workload six,light,demo --bits

Every contestant is a program of its own, which opens the model, answers once, and then runs when it is told to. `start_ms` and
`first_ms` are from before its process to the open model and to the first answer, with files in the page cache: medians over fresh
processes, in turns. `ms` is a run on the caller's buffers: medians over rounds in which all contestants take turns. `code_mb` is
the stripped library, of other tools the libraries that they load. `resident_mb` is a process's resident memory behind the last
turn. Weights of an exported model are copied to large pages, which is the default, or mapped. ONNX Runtime and OpenVINO open the
file as it comes, and what they keep of it for a faster start: a model that ONNX Runtime optimised and saved, and OpenVINO's cache.
Every exported answer is compared with Python's, bit for bit, on one thread and on all;
the others' within a relative error of 1e-3. The network `addition` adds 1 to a number: its `ms` is what a call costs.

`--bits` compares answers alone. FOLDER holds `onnxruntime_c_api.h` and the headers that it includes, of the installed version
or an older one. Without it ONNX Runtime takes no part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.as_it_comes import Model, decide
from benchmarks.exported.contestants import (
    Contestant,
    NotBuilt,
    exported_contestants,
    peers,
    python_contestant,
    write_addition,
)
from benchmarks.latency import select
from benchmarks.tools.output import keep, keep_table
from benchmarks.workloads import export, workloads
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.measure.statistics import paired_ratio

_TURN_S = 0.05
_PAUSE_S = 0.05
"""Behind each turn: threads of other tools spin when they are done."""
_CLOSE = 1e-3
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Row:
    """One contestant on one network."""

    network: str
    contestant: str
    start_ms: float = 0.0
    first_ms: float = 0.0
    ms: float = 0.0
    resident_mb: float = 0.0
    code_mb: float = 0.0
    handle_mb: float = 0.0
    """Of an exported model: weights, and what runs work in."""
    allocations: int = 0
    """Of an exported model, in all runs but the first."""
    python: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Its time over that of the plan in Python, with the 95 % interval."""
    answer: str = ""
    """"every bit" of Python's, or the relative error."""
    failed: str = ""


class Running:
    """A contestant's process."""

    def __init__(self, contestant: Contestant, folder: Path, threads: int) -> None:
        """Starts it and waits for the first answer.

        Raises:
            NotBuilt: it failed.
        """
        (folder / "outputs.bin").unlink(missing_ok=True)  # so that no answer of another process is taken for this one's
        begun = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._process = subprocess.Popen(
            [*contestant.command, str(folder), str(threads), *contestant.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=contestant.environment,
        )
        self.start_ms, self.first_ms = ((self._number(word) - begun) / 1e6 for word in ("opened", "answered"))

    def turn(self, runs: int) -> float:
        """Milliseconds of a run."""
        assert self._process.stdin is not None
        print(runs, file=self._process.stdin, flush=True)
        return self._number("turn") / 1e6

    def end(self) -> Mapping[str, int]:
        """What it says at its end."""
        printed, _ = self._process.communicate(timeout=_TIMEOUT_S)
        return {name: int(value) for name, value in (line.split() for line in printed.splitlines())}

    def _number(self, word: str) -> int:
        assert self._process.stdout is not None
        name, _, number = self._process.stdout.readline().partition(" ")
        if name != word:
            _, errors = self._process.communicate(timeout=_TIMEOUT_S)
            raise NotBuilt((errors.strip().splitlines() or ["it ended"])[-1])
        return int(number)


@dataclass
class _Measured:
    """What is known of a contestant while others take turns."""

    starts: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    answer: str = ""
    end: Mapping[str, int] = field(default_factory=dict)
    failed: str = ""


def compare_bits(contestant: Contestant, folder: Path, threads: int, expected: bytes) -> str:
    """How an answer differs from the expected one, see `describe_answer`."""
    Running(contestant, folder, threads).end()
    return describe_answer((folder / "outputs.bin").read_bytes(), expected)


def describe_answer(answer: bytes, expected: bytes) -> str:
    """The words "every bit" or "another size", or the relative error of floats."""
    if answer == expected:
        return "every bit"
    if len(answer) != len(expected) or len(answer) % 4:
        return "another size"
    x, y = (np.frombuffer(each, np.float32).astype(np.float64) for each in (answer, expected))
    return f"{np.linalg.norm(x - y) / np.linalg.norm(y):.1e}"


def measure(
    network: str, contestants: Sequence[Contestant], folder: Path, threads: int, starts: int, rounds: int
) -> list[Row]:
    """Rows of a network. The first contestant is the plan in Python, whose answer the others are compared with. Where it has none,
    no answer of others is right."""
    measured = {contestant: _Measured() for contestant in contestants}
    expected = b""
    running: dict[Contestant, Running] = {}
    for number in range(starts):
        for contestant, state in measured.items():
            if state.failed:
                continue
            try:
                process = Running(contestant, folder, threads)
            except NotBuilt as error:
                state.failed = str(error)
                continue
            state.starts.append(process.start_ms)
            state.firsts.append(process.first_ms)
            if number == starts - 1:
                running[contestant] = process
                answer = (folder / "outputs.bin").read_bytes()
                expected = answer if contestant is contestants[0] else expected
                state.answer = describe_answer(answer, expected)
            else:
                process.end()
            time.sleep(_PAUSE_S)
    runs = {contestant: max(1, int(_TURN_S * 1e3 / process.turn(1))) for contestant, process in running.items()}
    for number in range(rounds):
        for contestant in list(running) if number % 2 == 0 else list(reversed(running)):
            measured[contestant].turns.append(running[contestant].turn(runs[contestant]))
            time.sleep(_PAUSE_S)
    for contestant, process in running.items():
        measured[contestant].end = process.end()
    return [_make_row(network, contestant, state, measured[contestants[0]]) for contestant, state in measured.items()]


def _make_row(network: str, contestant: Contestant, state: _Measured, python: _Measured) -> Row:
    if state.failed or not state.turns:
        return Row(network, contestant.name, failed=state.failed or "it ended")
    failed = ""
    if contestant.exported and state.answer != "every bit":
        failed = f"the answer is not Python's: {state.answer}"
    elif state.answer != "every bit" and not (state.answer[0].isdigit() and float(state.answer) <= _CLOSE):
        failed = f"the answer is wrong: {state.answer}"
    ratio = paired_ratio([(ms,) for ms in state.turns], [(ms,) for ms in python.turns])
    return Row(
        network,
        contestant.name,
        statistics.median(state.starts),
        statistics.median(state.firsts),
        statistics.median(state.turns),
        state.end["resident_kb"] / 1e3 * 1.024,
        contestant.code_bytes / 1e6,
        state.end.get("handle_bytes", 0) / 1e6,
        state.end.get("allocations", 0),
        (ratio.value, ratio.low, ratio.high),
        state.answer,
        failed,
    )


def prepare_folder(model: Model, artifact: Path, folder: Path) -> None:
    """Writes `ends.txt`, `inputs.bin` and `inputs.npz`, by which contestants know the model."""
    import bricolage

    executable = bricolage.load(artifact)
    answers = executable.run(model.inputs)
    names = [spec.name for spec in executable.inputs]
    given = {name: np.ascontiguousarray(model.inputs[name]) for name in names}
    lines = []
    for side, arrays in (("input", given), ("output", answers)):
        for name, value in arrays.items():
            array = np.asarray(value)
            sizes = " ".join(map(str, array.shape))
            lines.append(f"{side} {name} {_ELEMENT_TYPES[array.dtype.name]} {array.nbytes} {array.ndim} {sizes}\n")
    (folder / "ends.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "inputs.bin").write_bytes(b"".join(array.tobytes() for array in given.values()))
    np.savez(folder / "inputs.npz", **given)  # type: ignore[arg-type]


_ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}
"""ONNX's numbers."""


def run_network(model: Model, asked: argparse.Namespace, folder: Path) -> list[Row]:
    """Decides with our engine alone, exports, builds and measures a network."""
    artifact, _, reason = decide(
        model, folder, ["--backend", "native", "--effort", asked.effort, "--threads", str(asked.threads)]
    )
    if reason:
        return [Row(model.name, "exported", failed=reason)]
    prepare_folder(model, artifact, folder)
    try:
        exported, mapped = exported_contestants(artifact, folder, weigh=not asked.bits)
    except NotBuilt as error:
        return [Row(model.name, "exported", failed=str(error))]
    python = python_contestant(artifact)
    if not asked.bits:
        others = peers(model.path, folder, asked.onnxruntime_include, asked.threads)
        rows = measure(
            model.name, [python, exported, mapped, *others], folder, asked.threads, asked.starts, asked.rounds
        )
        print("\n".join(_describe_row(row) for row in rows), file=sys.stderr, flush=True)
    else:
        rows = []
    Running(python, folder, asked.threads).end()
    expected = (folder / "outputs.bin").read_bytes()
    for threads in sorted({1, asked.threads}):
        answer = compare_bits(exported, folder, threads, expected)
        failed = "" if answer == "every bit" else f"the answer is not Python's: {answer}"
        rows.append(Row(model.name, f"exported, bits on {threads}", answer=answer, failed=failed))
        print(_describe_row(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _describe_row(row: Row) -> str:
    if row.failed:
        return f"{row.network}, {row.contestant}: {row.failed}"
    if not row.ms:
        return f"{row.network}, {row.contestant}: {row.answer}"
    return (
        f"{row.network}, {row.contestant}: start {row.start_ms:.1f}, first {row.first_ms:.1f}, run {row.ms:.4f} ms, "
        f"{row.resident_mb:.1f} MB resident, {row.code_mb:.2f} MB of code, {row.answer}"
    )


def format_table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| network | contestant | start ms | first answer ms | run ms | over Python | resident MB | code MB | answer |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        over = f"{row.python[0]:.3f} [{row.python[1]:.3f}, {row.python[2]:.3f}]" if row.python[0] else ""
        times = f"{row.start_ms:.1f} | {row.first_ms:.1f} | {row.ms:.4g}" if row.ms else " | | "
        sizes = f"{row.resident_mb:.1f} | {row.code_mb:.2f}" if row.ms else " | "
        answer = row.failed or row.answer
        lines.append(f"| {row.network} | {row.contestant} | {times} | {over} | {sizes} | {answer} |")
    return "\n".join(lines)


def tabulate_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Rows with times as docs/results.md reads them."""
    return [
        {
            "network": row.network,
            "contestant": row.contestant,
            "start_ms": f"{row.start_ms:.1f}",
            "first_ms": f"{row.first_ms:.1f}",
            "ms": f"{row.ms:.4g}",
            "over_python": " to ".join(f"{value:.3f}" for value in row.python[1:]),
            "resident_mb": f"{row.resident_mb:.1f}",
            "code_mb": f"{row.code_mb:.2f}" if row.code_mb else "",
            "handle_mb": f"{row.handle_mb:.1f}" if row.handle_mb else "",
            "answer": row.failed or row.answer,
        }
        for row in rows
        if row.ms
    ]


def models(words: str, folder: Path) -> Iterator[Model]:
    """Networks by name or family, and `addition`."""
    names = words.split(",")
    if "addition" in names:
        yield write_addition(folder)
    known = workloads()
    others = [name for name in names if name != "addition"]
    for name in select(others) if others else []:
        yield Model(name, export(known[name]), known[name].example_inputs(0))


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exported", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="addition,resnet-50,minilm-l6", help="names or families, by commas")
    parser.add_argument("--effort", default="instant")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--starts", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--bits", action="store_true", help="compare answers only")
    parser.add_argument("--onnxruntime-include", type=Path, help="a folder with onnxruntime_c_api.h")
    parser.add_argument("--output", type=Path, help="keep the rows as JSON, after each network")
    parser.add_argument("--csv", type=Path, help="also write the rows for docs/results.md here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as work:
        for model in models(asked.workload, Path(work)):
            (folder := Path(work) / model.name).mkdir(exist_ok=True)
            rows += run_network(model, asked, folder)
            keep({"processor": str(host()), "rows": [asdict(row) for row in rows]}, asked.output)
    if not asked.bits:
        keep_table(tabulate_rows(rows), asked.csv)
    print(json.dumps([asdict(row) for row in rows], indent=1) if asked.json else format_table(rows))
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
