"""What ships against the file as it comes, each alone in a process of its own: the user's day.

    python -m benchmarks.as_it_comes --json out/as_it_comes.json                    # trained networks out of packages
    python -m benchmarks.as_it_comes --list                                          # which these are, and their wheels
    python -m benchmarks.as_it_comes --only silero,ocr --rounds 5
    python -m benchmarks.as_it_comes --workload six,collage --load 1-nice0
    python -m benchmarks.as_it_comes model.onnx=inputs.npz --singles native,onnxruntime,openvino

`bricolage optimize` decides on each file in quiet, in a process of its own, and its artifact is loaded from the disk. Then the
artifact and the untouched file in every tool that reads it take turns, each turn a fresh process (`benchmarks.tools.alone`) with
the tool's own threads and defaults: call after call (`steady`), and after pauses (`sparse`). `ratio` is the best tool's time over
ours, the median over the rounds, with a 95 % interval of a paired bootstrap; above 1 ours is faster. `load`: what else ran
meanwhile (`benchmarks.tools.load`). Every answer is compared with float64 in the same run; who is wrong is not counted among the
tools, and a row in which ours is wrong fails.

With `--singles` bricolage also decides with each of these backends alone (at effort `instant`), and those artifacts take turns with
the others. `behind` is the time of what ships over the time of the best contestant, so that 1.00 is the right choice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.real.catalogue import NETWORKS, Unavailable
from benchmarks.real.more import MORE
from benchmarks.real.packages import table
from benchmarks.real.written import Truth, truth
from benchmarks.tools.load import KINDS, busy
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.measure.statistics import paired_ratio
from bricolage.plan import artifact
from bricolage.report.words import percent

FILES = (*NETWORKS, *MORE)
"""Trained networks out of packages."""
TOOLS = ("onnxruntime", "openvino")
OURS = "bricolage"
_CHILD_S = 600.0
_FIGURES = ("steady", "sparse")
_LEAST = 0.98
_NEAR = 1.03
"""How far the choice may be behind the best contestant."""


@dataclass(frozen=True)
class Row:
    """One model under one load. Times in milliseconds, medians over the rounds."""

    model: str
    load: str
    pattern: str
    shipped: str = ""
    best_tool: str = ""
    best_ms: float = math.nan
    ours_ms: float = math.nan
    ratio: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    decided_s: float = 0.0
    error: float = math.nan
    """Of ours, against float64."""
    right: bool = False
    tools_ms: Mapping[str, float] = field(default_factory=dict)
    singles_ms: Mapping[str, float] = field(default_factory=dict)
    """Of artifacts that were decided with one backend alone."""
    behind: float = math.nan
    """Our time over that of the best contestant, the singles among them."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Of contestants without a time, why."""
    failed: str = ""

    @property
    def holds(self) -> bool:
        """Whether ours is right and not slower than the best tool, within the interval."""
        return self.right and not self.failed and self.interval[1] >= _LEAST


@dataclass(frozen=True)
class Model:
    """A file, and inputs that make sense to it."""

    name: str
    path: Path
    inputs: Mapping[str, np.ndarray]


def models(asked: argparse.Namespace) -> Iterator[Model]:
    """Those that were asked for; the trained networks where none were."""
    for word in asked.files:
        path, _, inputs = word.partition("=")
        with np.load(inputs, allow_pickle=False) as file:
            yield Model(Path(path).stem, Path(path), {name: file[name] for name in file.files})
    for name in filter(None, asked.workload.split(",")):
        known = workloads()
        for one in [name] if name in known else [w for w in known if name == known[w].family]:
            yield Model(one, export(known[one]), known[one].example_inputs(0))
    if not asked.files and not asked.workload:
        starts = tuple(filter(None, asked.only.split(","))) or ("",)
        for network in FILES:
            if network.name.startswith(starts):
                try:
                    yield Model(network.name, network.path(), network.inputs(0))
                except Unavailable as reason:
                    print(f"{network.name}: skipped, {reason}", flush=True)


@dataclass(frozen=True)
class Contestant:
    """Who calls which file: `tool` is a word of `benchmarks.tools.alone`."""

    tool: str
    path: Path


def decide(model: Model, folder: Path, words: Sequence[str], name: str = OURS) -> tuple[Path, float, str]:
    """The artifact of a model, seconds that deciding took, and why there is none."""
    made, given = folder / f"{name}{artifact.SUFFIX}", folder / "inputs.npz"
    np.savez(given, **model.inputs)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "bricolage.cli.main", "optimize", str(model.path), "-o", str(made)]
    begun = time.monotonic()
    ran = subprocess.run(
        [*command, "--input", str(given), *words], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    seconds = time.monotonic() - begun
    if made.exists():
        return made, seconds, ""
    lines = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
    return made, seconds, lines[-1]


def alone(contestant: Contestant, outputs: Path, seconds: float, pauses: int) -> dict[str, float] | str:
    """Times of a contestant in a fresh process, which writes its answer to `outputs`, or why it has none."""
    inputs = outputs.with_name("inputs.npz")
    command = [sys.executable, "-m", "benchmarks.tools.alone", contestant.tool, str(contestant.path), str(inputs)]
    command += ["--seconds", str(seconds), "--pauses", str(pauses), "--outputs", str(outputs)]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHILD_S, check=False, encoding="utf-8", errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"no end in {_CHILD_S:.0f} s"
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {ran.returncode}"
    times: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return times


def take_turns(
    contestants: Mapping[str, Contestant], folder: Path, rounds: int, seconds: float, pauses: int
) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """Times of contestants that take turns, each turn a fresh process, and why some have none. Who fails once has no further turn.
    `folder` has `inputs.npz`; the answer of a contestant lies there under its name."""
    times: dict[str, list[dict[str, float]]] = {}
    refusals: dict[str, str] = {}
    for turn in range(rounds):
        names = [name for name in contestants if name not in refusals]
        for name in names if turn % 2 == 0 else reversed(names):
            result = alone(contestants[name], folder / f"{name}.npz", seconds, pauses)
            if isinstance(result, str):
                refusals[name] = result
            else:
                times.setdefault(name, []).append(result)
    return times, refusals


def measure(model: Model, asked: argparse.Namespace, folder: Path) -> list[Row]:
    """The rows of a model: one for each load and pattern."""
    made, seconds, why = decide(model, folder, asked.options)
    if why:
        return [
            Row(model.name, load, figure, decided_s=seconds, failed=why) for load in asked.load for figure in _FIGURES
        ]
    shipped = artifact.load_artifact(made)[0].buckets[0].race.chosen
    right = truth(model.path, dict(model.inputs), Options())
    contestants = {OURS: Contestant(OURS, made), **{tool: Contestant(tool, model.path) for tool in TOOLS}}
    refusals: dict[str, str] = {}
    for backend in asked.singles:
        path, _, reason = decide(model, folder, [*asked.options, "--backend", backend, "--effort", "instant"], backend)
        contestants[_single(backend)] = Contestant(OURS, path)
        if reason:
            refusals[_single(backend)] = reason
    rows: list[Row] = []
    for load in asked.load:
        with busy(load) if load != "quiet" else nullcontext():
            able = {name: contestant for name, contestant in contestants.items() if name not in refusals}
            times, failures = take_turns(able, folder, asked.rounds, asked.seconds, asked.pauses)
        told = refusals | failures
        errors = {name: judge(right, folder / f"{name}.npz") for name in times if name not in told}
        started = [Row(model.name, load, figure, shipped, decided_s=seconds) for figure in _FIGURES]
        rows += [judge_row(row, times, told, errors) for row in started]
    return rows


def _single(backend: str) -> str:
    """The name of the contestant that was decided with a backend alone."""
    return f"{backend} alone"


def judge(right: Truth, outputs: Path) -> tuple[float, bool]:
    """How far an answer is off, and whether it is right."""
    with np.load(outputs, allow_pickle=False) as file:
        answer = [file[f"arr_{index}"] for index in range(len(file.files))]
    if len(answer) != len(right.outputs):
        return math.inf, False
    return right.judge(dict(zip(right.outputs, answer, strict=True)))


def judge_row(
    row: Row,
    times: Mapping[str, Sequence[Mapping[str, float]]],
    told: Mapping[str, str],
    errors: Mapping[str, tuple[float, bool]],
) -> Row:
    """A row with its figures: `times` of the turns, why contestants have none, and how far each is off and whether it is right."""
    key = "steady_ms" if row.pattern == "steady" else "paused_ms"
    samples = {name: [[turn[key]] for turn in times[name]] for name in errors if all(turn[key] for turn in times[name])}
    told = {**told, **{name: f"wrong: {error:.1e}" for name, (error, is_right) in errors.items() if not is_right}}
    medians = {name: float(np.median(turns)) for name, turns in samples.items()}
    others = {name: ms for name, ms in medians.items() if name in TOOLS and errors[name][1]}
    singles = {name: ms for name, ms in medians.items() if name not in (OURS, *TOOLS) and errors[name][1]}
    row = dataclasses.replace(row, told=told, tools_ms=others, singles_ms=singles)
    if OURS not in medians:
        return dataclasses.replace(row, failed=told.get(OURS, "no time"))
    error, is_right = errors[OURS]
    row = dataclasses.replace(row, ours_ms=medians[OURS], error=error, right=is_right)
    if singles:
        contestants = [OURS, *others, *singles]
        best = min(contestants, key=medians.__getitem__)
        row = dataclasses.replace(row, behind=paired_ratio(samples[OURS], samples[best]).value)
    if not others:
        return dataclasses.replace(row, ratio=math.inf, interval=(math.inf, math.inf))
    best = min(others, key=others.__getitem__)
    ratio = paired_ratio(samples[best], samples[OURS])
    return dataclasses.replace(
        row, best_tool=best, best_ms=others[best], ratio=ratio.value, interval=(ratio.low, ratio.high)
    )


def line(row: Row) -> str:
    """For people, a row of a table in Markdown."""
    if row.failed:
        return f"| {row.model} | {row.load} | {row.pattern} | – | – | {row.failed} |"
    ratio = f"{row.ratio:.2f} [{row.interval[0]:.2f}, {row.interval[1]:.2f}]"
    mark = "" if row.holds else " **below**" if row.right else " **WRONG**"
    tool = f"{row.best_tool}, {row.best_ms:.3g}"
    singles = ", ".join(f"{name} {ms:.3g}" for name, ms in row.singles_ms.items())
    behind = f" {row.behind:.2f} ({singles}) |" if row.singles_ms else ""
    return f"| {row.model} | {row.load} | {row.pattern} | {tool} | {row.ours_ms:.3g} ({row.shipped}) | {ratio}{mark} |{behind}"


def figures(rows: Sequence[Row]) -> list[str]:
    """Geometric mean, least, and how many are below, for each load and pattern."""
    found: list[str] = []
    for load, pattern in dict.fromkeys((row.load, row.pattern) for row in rows):
        own = [row for row in rows if (row.load, row.pattern) == (load, pattern)]
        ratios = [row.ratio for row in own if math.isfinite(row.ratio)]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            below = [row.model for row in own if not row.holds]
            words = f": {', '.join(below)}" if below else ""
            share = percent(len(below) / len(own))
            found.append(
                f"{load}, {pattern}: {len(own)} models, geometric mean {mean:.2f}, least {min(ratios):.2f}, "
                f"{len(below)} ({share}) below {_LEAST}{words}"
            )
        raced = [row for row in own if math.isfinite(row.behind)]
        if raced:
            far = [row.model for row in raced if row.behind > _NEAR]
            words = f": {', '.join(far)}" if far else ""
            found.append(f"{load}, {pattern}: {len(far)} of {len(raced)} behind the best contestant by over 3 %{words}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """The command; 1 where a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="MODEL.onnx=INPUTS.npz")
    parser.add_argument("--only", default="", help="trained networks whose names begin so, parted by commas")
    parser.add_argument("--workload", default="", help="workloads or groups of them, parted by commas")
    parser.add_argument("--load", action="append", choices=KINDS, help="default: quiet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7, help="of steady calls in each turn")
    parser.add_argument("--pauses", type=int, default=15, help="calls after a pause in each turn")
    parser.add_argument("--singles", default="", help="backends that also decide alone, parted by commas")
    parser.add_argument("--options", default="", help="further words for `bricolage optimize`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="the trained networks and their wheels, and nothing else")
    asked = parser.parse_args(words)
    if asked.list:
        print(table(FILES))
        return 0
    asked.load, asked.options = asked.load or ["quiet"], asked.options.split()
    asked.singles = list(filter(None, asked.singles.split(",")))
    rows: list[Row] = []
    heads = ["model", "load", "pattern", "best tool, ms", "bricolage, ms", "ratio", *["behind"] * bool(asked.singles)]
    print(f"{host()}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for model in models(asked):
        with tempfile.TemporaryDirectory() as folder:
            try:
                new = measure(model, asked, Path(folder))
            except BricolageError as error:
                new = [
                    Row(model.name, load, figure, failed=error.sentence) for load in asked.load for figure in _FIGURES
                ]
        rows += new
        print("\n".join(map(line, new)), flush=True)
        keep({"hardware": str(host()), "rows": [dataclasses.asdict(row) for row in rows]}, asked.json)
    print("\n" + "\n".join(figures(rows)))
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    sys.exit(main())
