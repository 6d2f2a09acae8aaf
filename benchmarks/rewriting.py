"""How many operators rewriting leaves, beside other tools; `python -m benchmarks.rewriting`.

    python -m benchmarks.rewriting --output out/rewriting.json
    python -m benchmarks.rewriting --workload six,nasrnn --exports unoptimised
    python -m benchmarks.rewriting --show out/rewriting.json

Counted are the operators of the model as exported; of what `bricolage rewrite` makes of it, in the model's opset and with
`--opset 23`; and of what `benchmarks.rewrites.optimizers` make of it. What ONNX Runtime fused counts as the operators that it
replaces (`benchmarks.fusion.counting`), in the words of opset 18 and of opset 23. Every result is run by ONNX Runtime on the same
inputs and compared with the original in float64: a cell of a wrong answer says so.

What a backend gains by our files: `benchmarks.rewrites.rewriting_alone`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks.fusion import counting
from benchmarks.latency import select
from benchmarks.rewrites import optimizers
from benchmarks.rewrites.exports import ALL, Export, at_sizes
from benchmarks.workloads import export, workloads
from bricolage.api.rewrite import rewrite
from bricolage.base.options import BOUNDS
from bricolage.graph.extract import write_whole
from bricolage.verify.bound import FACTOR, draws_for, rounding_errors
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import Evaluator

OPSETS = (18, 23)
"""The oldest that all models are brought to, and the first with attention and RMS normalisation."""
OURS = ("bricolage", "bricolage, opset 23")
_COUNTED = ("onnxruntime, in opset 18", "onnxruntime, in opset 23")

Arrays = Mapping[str, Any]


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

    def best_other(self, opset: int) -> int | None:
        """The fewest operators that another tool leaves, those of ONNX Runtime in the words of `opset`."""
        names = [*optimizers.TOOLS, _COUNTED[OPSETS.index(opset)]]
        found = [n for name in names if name != "onnxruntime" and isinstance(n := self.counts.get(name), int)]
        return min(found, default=None)


class _Check:
    """Runs models with ONNX Runtime and compares with the original in float64."""

    def __init__(self, path: Path, inputs: Arrays) -> None:
        original = at_sizes(path, inputs)
        self._inputs = inputs
        self._reference = Evaluator(original.model)(inputs)
        rounding = rounding_errors(original.model, inputs, self._reference, draws_for(original))
        self.bound = max(BOUNDS["highest"], FACTOR * max(rounding.values(), default=0.0))

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
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def row(name: str, exported: Export) -> Row:
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
    return Row(name, exported, _count(source, OPSETS[0]), counts, errors, check.bound, seconds)


def _labels(tool: str) -> list[tuple[str, int]]:
    """Columns of a tool: ONNX Runtime has two."""
    return list(zip(_COUNTED, OPSETS, strict=True)) if tool == "onnxruntime" else [(tool, OPSETS[0])]


def _count(path: Path, opset: int) -> int:
    return counting.operators(onnx.load(path, load_external_data=False), opset)


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


def _show(rows: Sequence[Row], versions: Mapping[str, str]) -> str:
    parts = [table(rows)]
    worst = max((error / r.bound for r in rows for error in r.errors.values()), default=0.0)
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts.append(f"{listed}. Largest error: {worst:.2g} of the bound.")
    return "\n\n".join(parts)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewriting", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default=",".join(ALL), help="names or families, separated by commas")
    parser.add_argument("--exports", default="exported,unoptimised", help="exported, unoptimised or both")
    parser.add_argument("--output", type=Path, help="write all figures there as JSON")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of such a file")
    given = parser.parse_args()
    if given.show:
        data = json.loads(given.show.read_text(encoding="utf-8"))
        print(_show([Row(**row) for row in data["rows"]], data["versions"]))
        return 0
    rows: list[Row] = []
    for name in select(given.workload.split(",")):
        for exported in given.exports.split(","):
            rows.append(row(name, exported))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if given.output:
                given.output.parent.mkdir(parents=True, exist_ok=True)
                kept = {"versions": optimizers.versions(), "rows": [asdict(r) for r in rows]}
                given.output.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(_show(rows, optimizers.versions()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
