"""A pack of targets that must differ beside a pack of each alone.

    python -m benchmarks.serving.packs --output out/packs.json
    python -m benchmarks.serving.packs --networks ocr-rec --targets targets.toml --effort quick --budget 30
    python -m benchmarks.serving.packs --networks light-squeezenet --fleet

Networks: MobileNet-V3 and MiniLM, and two trained ones out of packages: a YOLOv8 (nudenet) and a recogniser of text (ocr-rec).
Targets: this machine, one thread, `low` (products of bytes take part), 256 MB, a limit of latency of 0.6 of ONNX Runtime's own time
here, AVX-512 and AMX. Of an instruction set that this processor has not, the time is predicted for as many cores of the same clock
and bandwidth; tables mark it with `~`. With `--fleet` there are 16 targets instead: one and all threads, `highest` and `low`, four
described devices.

Each command is a process of its own with an empty cache, as a new user has it: one `pack` of all targets, and one of each alone.
`cost`: seconds of the first over those of all others together; `measured`: rows that each left in its database of costs, which does
not depend on the time. `ratio`: time of the shared pack's plan over that of the separate one, in turns in this process; plans for
instructions that are not here have none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import bricolage
from benchmarks.real.catalogue import NETWORKS
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.api.pack import read_targets
from bricolage.base.codec import decode
from bricolage.base.options import Precision, available_cores
from bricolage.costs.database import Database
from bricolage.device.device import lanes
from bricolage.device.host import host
from bricolage.driver.packs.described_target import is_elsewhere
from bricolage.errors import OK, UnservedTargets
from bricolage.measure.turns import make_turn, time_in_turns
from bricolage.native.cpu.isa import described_instructions
from bricolage.plan.pack import Pack, PackEntry, PackTarget

_SHARED, _SEPARATE = "shared", "separate"
_NETWORKS = ("mobilenet-v3", "minilm-l6", "nudenet", "ocr-rec")
_LIMIT = 0.6
"""Of ONNX Runtime's time."""
_RUNS = 20
_REFUSED = re.compile(r"target '([^']+)': (.*?)(?=; target '|$)")


@dataclass(frozen=True)
class Subject:
    """A network with its inputs."""

    name: str
    model: Path
    inputs: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TargetRow:
    """One target of one network. Times of calls are in milliseconds."""

    network: str
    target: str
    precision: str
    """With which it was decided."""
    ships: str
    ms: float | None
    predicted_ms: tuple[float, float] | None
    """Interval where `ms` is predicted."""
    error: float | None
    """Relative to float64; emulated where the time is predicted."""
    megabytes: float
    """Held by a fresh process that ran it."""
    shared_s: float
    separate_s: float
    """Of the command for this target alone."""
    separate_ships: str
    ratio: float | None
    ratio_interval: tuple[float, float] | None


@dataclass(frozen=True)
class PackCost:
    """One network."""

    network: str
    processor: str
    shared_s: float
    separate_s: float
    cost: float
    shared_measured: int
    separate_measured: int
    """Rows in databases of costs."""
    different_plans: int
    """Contestants that ship, each counted once."""
    taken: str
    """The target that loading the pack takes here."""
    rows: tuple[TargetRow, ...]


def find_subject(name: str) -> Subject:
    """A network by the name that workloads or the catalogue of trained ones give it.

    Raises:
        KeyError: there is none.
        Unavailable: its package cannot be had.
    """
    if name in workloads():
        workload = workloads()[name]
        return Subject(name, export(workload), dict(workload.example_inputs(0)))
    network = {network.name: network for network in NETWORKS}[name]
    return Subject(name, network.path(), network.inputs(0))


def differing_targets(subject: Subject) -> tuple[PackTarget, ...]:
    """Targets that must differ, with a limit of latency that this machine gives."""
    chosen = [PackTarget("here"), PackTarget("bytes", "low"), PackTarget("small", memory_mb=256)]
    chosen += [PackTarget("one-thread", threads=1)] if available_cores() > 1 else []
    chosen.append(PackTarget("limit", "low", latency_ms=_LIMIT * time_onnxruntime(subject)))
    if host().has("avx512"):
        chosen.append(PackTarget("avx2", isa="avx2"))
    return (*chosen, *(described(isa) for isa in ("avx512", "amx") if is_elsewhere(described(isa))))


def described(isa: str) -> PackTarget:
    """An instruction set on as many cores of the same clock and bandwidth."""
    here = host()
    wider = lanes(described_instructions(isa)) / lanes(here.instructions)
    return PackTarget(isa, isa=isa, gflops=round(here.peaks.gflops * wider, 1), gbytes=here.peaks.gbytes)


def fleet_targets() -> tuple[PackTarget, ...]:
    """16 devices: threads, precisions, and four shares of this machine's peaks."""
    peaks = host().peaks
    words: tuple[Precision, ...] = ("low", "highest")
    return tuple(
        PackTarget(
            f"{word}-{threads}-{part}", word, threads, gflops=peaks.gflops * threads / part, gbytes=peaks.gbytes / part
        )
        for word, threads, part in itertools.product(words, {available_cores(), 1}, (1, 2, 4, 8))
    )


def time_onnxruntime(subject: Subject) -> float:
    """Median of a call of the file as it comes, milliseconds."""
    import onnxruntime

    session = onnxruntime.InferenceSession(subject.model, providers=["CPUExecutionProvider"])
    times = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        session.run(None, dict(subject.inputs))
        times.append(1e3 * (time.perf_counter() - began))
    return float(np.median(times))


def compare(subject: Subject, targets: Sequence[PackTarget], words: Sequence[str], rounds: int) -> PackCost:
    """Runs all of it.

    Raises:
        RuntimeError: a command fails.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(folder / "inputs.npz", **subject.inputs)  # type: ignore[arg-type]  # its stub takes a name for a flag
        shared = make_pack(subject, targets, folder / _SHARED, words)
        separate = {target.name: make_pack(subject, (target,), folder / target.name, words) for target in targets}
        os.environ["BRICOLAGE_CACHE"] = str(folder / "cache-race")
        choice = bricolage.load(shared.path).choice if shared.entries else None
        rows = tuple(race_target(subject, target, shared, separate[target.name], rounds) for target in targets)
    total = sum(each.seconds for each in separate.values())
    return PackCost(
        subject.name, str(host()), shared.seconds, total, shared.seconds / total, shared.measured,
        sum(each.measured for each in separate.values()), len({entry.ships for entry in shared.entries.values()}),
        choice.entry.target.name if choice is not None else "", rows,
    )  # fmt: skip


@dataclass(frozen=True)
class MadePack:
    """What one command made, and a second one where the first refused targets."""

    path: Path
    entries: Mapping[str, PackEntry]
    """By target."""
    refused: Mapping[str, str]
    """Why, by target."""
    seconds: float
    measured: int


def make_pack(subject: Subject, targets: Sequence[PackTarget], folder: Path, words: Sequence[str]) -> MadePack:
    """Runs `bricolage pack` with a cache of its own, and again without the targets that it refuses.

    Raises:
        RuntimeError: it fails.
    """
    folder.mkdir()
    listed, path = folder / "targets.toml", folder / "made.pack"
    command = [sys.executable, "-m", "bricolage", "pack", str(subject.model), "--targets", str(listed)]
    command += ["-o", str(path), "--input", str(folder.parent / "inputs.npz"), "--json", *words]
    began, environment = time.monotonic(), {**os.environ, "BRICOLAGE_CACHE": str(folder / "cache")}
    left, refused, entries = list(targets), dict[str, str](), dict[str, PackEntry]()
    while left and not entries:
        listed.write_text("\n".join(_table(target) for target in left))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        answer = json.loads(done.stdout) if done.stdout else {}
        if done.returncode == OK:
            entries = {entry.target.name: entry for entry in decode(Pack, answer).entries}
        elif answer.get("error", {}).get("type") == UnservedTargets.__name__:
            refused |= dict(_REFUSED.findall(answer["error"]["message"]))
            left = [target for target in left if target.name not in refused]
            command.append("--provisional")  # decisions are taken over as they are
        else:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    seconds = time.monotonic() - began
    with Database(folder / "cache" / "costs.sqlite") as database:
        measured = sum(1 for _ in database.entries())
    return MadePack(path, entries, refused, seconds, measured)


def race_target(subject: Subject, target: PackTarget, shared: MadePack, separate: MadePack, rounds: int) -> TargetRow:
    """The row of a target; its two plans take turns where both are there and this machine has their instructions."""
    name, ratio = target.name, None
    entry, alone = shared.entries.get(name), separate.entries.get(name)
    if entry is not None and alone is not None and not entry.emulated:
        runs = {
            kind: make_turn(partial(bricolage.load(made.path, target=name).run, dict(subject.inputs)), 3, 1)
            for kind, made in ((_SHARED, shared), (_SEPARATE, separate))
        }
        ratio = time_in_turns(runs, rounds).ratio(_SHARED, _SEPARATE)
    return TargetRow(
        subject.name,
        name,
        target.precision if entry is None else entry.precision or target.precision,
        f"refused: {shared.refused[name]}" if entry is None else entry.ships,
        None if entry is None else entry.median_ms,
        None if entry is None else entry.predicted_ms,
        None if entry is None else entry.error,
        0.0 if entry is None else entry.resident_bytes / 2**20,
        0.0 if entry is None else entry.seconds,
        separate.seconds,
        f"refused: {separate.refused[name]}" if alone is None else alone.ships,
        None if ratio is None else 1 / ratio.value,
        None if ratio is None else (1 / ratio.high, 1 / ratio.low),
    )


def _table(target: PackTarget) -> str:
    plain = asdict(PackTarget("plain"))
    values = {key: value for key, value in asdict(target).items() if value != plain[key]}
    return "\n".join(["[[target]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""])


def show(cost: PackCost) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"{cost.network}: {cost.shared_s:.0f} s together, {cost.separate_s:.0f} s one by one, cost {cost.cost:.2f}; "
    yield f"{cost.shared_measured} and {cost.separate_measured} costs measured; {cost.different_plans} different plans; "
    yield f"loading takes '{cost.taken}'"
    yield ""
    yield "| target | decided at | ships | call, ms | error | MB | s, together | s, alone | alone it ships | ratio |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---|---:|"
    for row in cost.rows:
        ms = "–" if row.ms is None else f"{'~' if row.predicted_ms else ''}{row.ms:.3g}"
        if row.predicted_ms:
            ms += " ({:.3g}–{:.3g})".format(*row.predicted_ms)
        ratio = "–"
        if row.ratio is not None and row.ratio_interval is not None:
            ratio = "{:.3f} [{:.3f}, {:.3f}]".format(row.ratio, *row.ratio_interval)
        error = "–" if row.error is None else f"{row.error:.1e}"
        cells = [row.target, row.precision, row.ships, ms, error, f"{row.megabytes:.0f}", f"{row.shared_s:.0f}"]
        yield f"| {' | '.join([*cells, f'{row.separate_s:.0f}', row.separate_ships, ratio])} |"


def main() -> None:
    """Prints a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(_NETWORKS), help="names, with commas between them")
    parser.add_argument("--model", type=Path, help="an ONNX file instead; needs --input")
    parser.add_argument("--input", type=Path, help="its inputs (.npz)")
    parser.add_argument("--targets", type=Path, help="a file of targets instead")
    parser.add_argument("--fleet", action="store_true", help="16 targets instead")
    parser.add_argument("--effort", default="instant")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for each target")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    words = ["--effort", given.effort, "--budget", f"{given.budget:g}s"]
    if given.model is not None:
        subjects = [Subject(given.model.stem, given.model, dict(np.load(given.input)))]
    else:
        subjects = [find_subject(name) for name in given.networks.split(",")]
    costs: list[PackCost] = []
    for subject in subjects:
        targets = fleet_targets() if given.fleet else differing_targets(subject)
        targets = read_targets(given.targets) if given.targets else targets
        costs.append(compare(subject, targets, words, given.rounds))
        keep([asdict(cost) for cost in costs], given.output)
        if not given.json:
            print("\n".join(show(costs[-1])), flush=True)
    if given.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
