"""Exports the networks that are out of sample, checks each file and prints what it is; `python -m benchmarks.unseen`.

    python -m benchmarks.unseen --only pit-xs,gat --json
    python -m benchmarks.unseen --list

A file is right where `onnx.checker` takes it, ONNX Runtime answers as PyTorch did, and our frontend and preparation take it. The
milliseconds are processor time of ONNX Runtime on one thread, the least of some calls: other processes change little of that. They
say how large a network is, and compare nothing. The exit code is 1 where a file is not right, or a network not out of sample.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.unseen.names import overlaps
from benchmarks.unseen.networks import NETWORKS, Arrays, expected, export
from bricolage.errors import BricolageError
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare

_CALLS = 12
_ERROR = 1e-4
"""Of two float32 answers, relative to the norm."""


@dataclass(frozen=True)
class Row:
    """One network."""

    network: str
    family: str
    source: str
    nodes: int = 0
    """Of the file."""
    operators: int = 0
    """Of the graph that decisions see."""
    megabytes: float = 0.0
    processor_ms: float = 0.0
    error: float = 0.0
    """Of ONNX Runtime's answer against PyTorch's, the largest of the outputs."""
    failed: str = ""


def check(name: str) -> Row:
    """Exports a network where its file is not there yet, and checks the file."""
    network = NETWORKS[name]
    try:
        path, inputs = export(name)
        onnx.checker.check_model(str(path))
        model = onnx.load(path, load_external_data=False)
        milliseconds, answers = _run(path, inputs)
        operators = len(prepare(to_model(path), {}).operators)
    except (BricolageError, onnx.checker.ValidationError) as error:
        return Row(name, network.family, network.source, failed=getattr(error, "sentence", str(error)))
    distance = max(_distance(answer, answers[output]) for output, answer in expected(name).items())
    return Row(
        name,
        network.family,
        network.source,
        len(model.graph.node),
        operators,
        round(sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6, 1),
        round(milliseconds, 2),
        distance,
        "" if distance <= _ERROR else "ONNX Runtime does not answer as PyTorch did",
    )


def _run(path: Path, inputs: Arrays) -> tuple[float, Arrays]:
    """Milliseconds of processor time of a call in ONNX Runtime, and its answer by output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    times = []
    for _ in range(_CALLS):
        began = time.process_time()
        answers = session.run(names, inputs)
        times.append(time.process_time() - began)
    return 1e3 * min(times), dict(zip(names, answers, strict=True))


def _distance(right: np.ndarray, answer: np.ndarray) -> float:
    return float(np.linalg.norm(np.float64(answer) - right) / np.linalg.norm(right))


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| network | family | source | nodes | operators | MB | processor, ms | error | |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = [row.network, row.family, row.source, str(row.nodes), str(row.operators), f"{row.megabytes:.3g}"]
        lines.append(f"| {' | '.join([*cells, f'{row.processor_ms:.3g}', f'{row.error:.1e}', row.failed])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen", description=str(__doc__).partition(";")[0])
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--list", action="store_true", help="which networks these are, and where they were published")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args(arguments)
    names = list(filter(None, given.only.split(","))) or list(NETWORKS)
    if unknown := [name for name in names if name not in NETWORKS]:
        parser.error(f"no such network: {', '.join(unknown)}; see --list")
    if given.list:
        for name in names:
            network = NETWORKS[name]
            print(f"{name}: {network.family}, {network.source}; {network.paper}")
        return 0
    seen = overlaps(NETWORKS[name] for name in names)
    for sentence in seen:
        print(f"not out of sample: {sentence}", file=sys.stderr)
    rows = []
    for name in names:
        rows.append(check(name))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows]) if given.json else table(rows))
    return int(bool(seen) or any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
