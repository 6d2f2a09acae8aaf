"""How many operators rewriting leaves, beside other tools; `python -m benchmarks.rewriting`.

    python -m benchmarks.rewriting --output out/rewriting.json
    python -m benchmarks.rewriting --workload six,nasrnn --exports unoptimised
    python -m benchmarks.rewriting --workload gpt2 --time
    python -m benchmarks.rewriting --show out/rewriting.json

Counted are the operators of the model as exported; of what `bricolage rewrite` makes of it, in the model's opset and with
`--opset 23`; and of what `benchmarks.optimizers` make of it. What ONNX Runtime fused counts as the operators that it
replaces (`benchmarks.counting`), in the words of opset 18 and of opset 23. Every result is run by ONNX Runtime on the same
inputs and compared with the original in float64: a cell of a wrong answer says so.

`--time` runs ONNX Runtime alone on the original and on our files, interleaved, in one process with the same options.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from benchmarks import counting, optimizers
from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.api.rewrite import rewrite
from bricolage.cost.statistics import Latency, paired_ratio
from bricolage.frontends import to_model
from bricolage.graph.extract import write_whole
from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.options import BOUNDS
from bricolage.verify.compare import acceptance_bound, relative_error
from bricolage.verify.reference import Evaluator, original_error

ALL = ("six", "minilm-l6", "rewriting")
OPSETS = (18, 23)
"""The oldest that all models are brought to, and the first with attention and RMS normalisation."""
OURS = ("bricolage", "bricolage, opset 23")
_COUNTED = ("onnxruntime, in opset 18", "onnxruntime, in opset 23")

Export = Literal["exported", "unoptimised"]
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Timed:
    """ONNX Runtime on one of our files, against the original."""

    name: str
    ms: float
    ms_ci: tuple[float, float]
    speedup: float
    speedup_ci: tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One model: operators by tool, or why there is no count."""

    workload: str
    export: Export
    original: int
    counts: Mapping[str, int | str]
    errors: Mapping[str, float]
    """‖y - y64‖ / ‖y64‖ of each result in float32."""
    bound: float
    rewrite_s: float
    original_ms: float | None = None
    times: tuple[Timed, ...] = field(default=())

    def best_other(self, opset: int) -> int | None:
        """The fewest operators that another tool leaves, those of ONNX Runtime in the words of `opset`."""
        names = [*optimizers.TOOLS, _COUNTED[OPSETS.index(opset)]]
        found = [n for name in names if name != "onnxruntime" and isinstance(n := self.counts.get(name), int)]
        return min(found, default=None)


class _Check:
    """Runs models with ONNX Runtime and compares with the original in float64."""

    def __init__(self, path: Path, inputs: Arrays) -> None:
        model = to_model(path)
        shapes = {value.name: value.shape for value in model.graph.inputs}
        sizes = {
            name: inputs[readers[0]].shape[list(map(str, shapes[readers[0]] or ())).index(name)]
            for name, readers in symbolic_dimensions(model).items()
        }
        original = prepare(model, sizes).model
        self._inputs = inputs
        self._reference = Evaluator(original)(inputs)
        self.bound = acceptance_bound(BOUNDS["highest"], original_error(original, inputs, self._reference))

    def error(self, path: Path) -> float:
        """Of the outputs of a model in float32; infinite where ONNX Runtime cannot run it."""
        try:
            found = _session(path).run(list(self._reference), dict(self._inputs))
        except Exception as reason:  # ONNX Runtime's errors have no base class of their own
            print(f"{path.name}: {reason}", file=sys.stderr)
            return math.inf
        return relative_error(found, list(self._reference.values()))


def _session(path: Path, threads: int = 2) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Several sessions take turns in this process: threads of one that has had its turn must not spin while another runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def row(name: str, exported: Export, *, timed: bool = False, rounds: int = 30) -> Row:
    """Rewrites one workload with every tool, counts and checks."""
    workload = workloads()[name]
    source, inputs = export(workload, unoptimised=exported == "unoptimised"), workload.example_inputs(0)
    check = _Check(source, inputs)
    counts: dict[str, int | str] = {}
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {tool: Path(folder) / f"{index}.onnx" for index, tool in enumerate((*OURS, *optimizers.installed()))}
        start = time.perf_counter()
        write_whole(rewrite(source).model, files[OURS[0]])
        seconds = time.perf_counter() - start
        write_whole(rewrite(source, opset=OPSETS[1]).model, files[OURS[1]])
        for tool in optimizers.installed():
            try:
                optimizers.run(tool, source, files[tool])
            except optimizers.Failed as reason:
                counts[tool] = f"failed: {reason}"
        for tool, path in files.items():
            if tool in counts:
                continue
            errors[tool] = check.error(path)
            wrong = not errors[tool] <= check.bound
            for label, opset in _labels(tool):
                counts[label] = f"wrong: error {errors[tool]:.1e}" if wrong else _count(path, opset)
        original_ms, times = _race(source, {n: files[n] for n in OURS}, inputs, rounds) if timed else (None, ())
    return Row(name, exported, _count(source, OPSETS[0]), counts, errors, check.bound, seconds, original_ms, times)


def _labels(tool: str) -> list[tuple[str, int]]:
    """Columns of a tool: ONNX Runtime has two."""
    return list(zip(_COUNTED, OPSETS, strict=True)) if tool == "onnxruntime" else [(tool, OPSETS[0])]


def _count(path: Path, opset: int) -> int:
    return counting.operators(onnx.load(path, load_external_data=False), opset)


def _race(source: Path, ours: Mapping[str, Path], inputs: Arrays, rounds: int) -> tuple[float, tuple[Timed, ...]]:
    """Interleaved rounds, forwards and backwards in turn."""
    sessions = {"original": _session(source)} | {name: _session(path) for name, path in ours.items()}
    samples: dict[str, list[list[float]]] = {name: [] for name in sessions}
    feeds = dict(inputs)
    for session in sessions.values():
        session.run(None, feeds)
    start = time.perf_counter()
    sessions["original"].run(None, feeds)
    repeats = max(1, min(50, round(0.05 / (time.perf_counter() - start))))
    for turn in range(rounds):
        for name in list(sessions)[:: 1 if turn % 2 == 0 else -1]:
            sessions[name].run(None, feeds)  # caches are the other's
            samples[name].append([_once(sessions[name], feeds) for _ in range(repeats)])
    whole = Latency.of_rounds(samples["original"])
    return whole.median_ms, tuple(_timed(name, samples["original"], samples[name]) for name in ours)


def _once(session: Any, feeds: dict[str, Any]) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return (time.perf_counter() - start) * 1e3


def _timed(name: str, before: list[list[float]], after: list[list[float]]) -> Timed:
    own, ratio = Latency.of_rounds(after), paired_ratio(before, after)
    return Timed(name, own.median_ms, (own.low_ms, own.high_ms), ratio.value, (ratio.low, ratio.high))


def table(rows: Sequence[Row]) -> str:
    """Counts as Markdown. Ours is bold where no other tool leaves fewer."""
    others = [tool for tool in optimizers.TOOLS if tool != "onnxruntime"]
    heads = ["model", "export", "original", *OURS, *others, *_COUNTED]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for r in rows:
        cells = [r.workload, r.export, str(r.original)]
        for name, opset in zip(OURS, OPSETS, strict=True):
            own, best = r.counts.get(name, ""), r.best_other(opset)
            least = isinstance(own, int) and (best is None or own <= best)
            cells.append(f"**{own}**" if least else str(own))
        cells += [str(r.counts.get(name, "")) for name in (*others, *_COUNTED)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def times_table(rows: Sequence[Row]) -> str:
    """Times as Markdown, with the geometric mean of the ratios."""
    lines = ["| model | export | original ms | " + " | ".join(f"{n} ms | ratio [95 % CI]" for n in OURS) + " |"]
    lines.append("|---|---|---:|" + "---:|---|" * len(OURS))
    for r in rows:
        if r.times:
            cells = [f"{t.ms:.3g} | {t.speedup:.3f} [{t.speedup_ci[0]:.3f}, {t.speedup_ci[1]:.3f}]" for t in r.times]
            lines.append(f"| {r.workload} | {r.export} | {r.original_ms:.3g} | {' | '.join(cells)} |")
    for kind in ("exported", "unoptimised"):
        chosen = [r.times for r in rows if r.times and r.export == kind]
        if chosen:
            means = [np.exp(np.mean(np.log([times[i].speedup for times in chosen]))) for i in range(len(OURS))]
            lines.append(f"| geometric mean | {kind} | | " + " | ".join(f" | {mean:.3f}" for mean in means) + " |")
    return "\n".join(lines)


def _show(rows: Sequence[Row], versions: Mapping[str, str]) -> str:
    parts = [table(rows)]
    if any(r.times for r in rows):
        parts.append(times_table(rows))
    worst = max((error / r.bound for r in rows for error in r.errors.values()), default=0.0)
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts.append(f"{listed}. Largest error: {worst:.2g} of the bound.")
    return "\n\n".join(parts)


def _rows(data: Mapping[str, Any]) -> list[Row]:
    return [Row(**{**r, "times": tuple(Timed(**t) for t in r["times"])}) for r in data["rows"]]


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewriting", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default=",".join(ALL), help="names or families, separated by commas")
    parser.add_argument("--exports", default="exported,unoptimised", help="exported, unoptimised or both")
    parser.add_argument("--time", action="store_true", help="run ONNX Runtime on the original and on our files")
    parser.add_argument("--rounds", type=int, default=30, help="of interleaved runs, with --time")
    parser.add_argument("--output", type=Path, help="write all figures there as JSON")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of such a file")
    given = parser.parse_args()
    if given.show:
        data = json.loads(given.show.read_text())
        print(_show(_rows(data), data["versions"]))
        return 0
    rows: list[Row] = []
    for name in select(given.workload.split(",")):
        for exported in given.exports.split(","):
            rows.append(row(name, exported, timed=given.time, rounds=given.rounds))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if given.output:
                given.output.parent.mkdir(parents=True, exist_ok=True)
                kept = {"versions": optimizers.versions(), "rows": [asdict(r) for r in rows]}
                given.output.write_text(json.dumps(kept, indent=1))
    print(_show(rows, optimizers.versions()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
