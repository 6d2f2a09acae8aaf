"""A pack of several targets beside a run of `optimize` for each.

    python -m benchmarks.serving.packs --json
    python -m benchmarks.serving.packs --workload mobilenet-v3 --effort quick --targets targets.toml --output out/packs.json

Each command is a process of its own with an empty cache, as a new user has it: one `pack`, and one `optimize` for each target. Then
the pack's plan of each target takes turns with the one decided separately, in this process, on the same inputs. `cost`: seconds
of the pack over those of all separate runs; `ratio`: the time of the pack's plan over that of the separate one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import bricolage
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.api.pack import read_targets
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.errors import OK
from bricolage.measure.turns import make_turn, time_in_turns
from bricolage.plan.pack import PackTarget, tree

_CHALLENGER, _SEPARATE = "pack", "separate"


@dataclass(frozen=True)
class PackRow:
    """One target. Times of runs are in milliseconds."""

    workload: str
    target: str
    parent: str
    pack_s: float
    """Of the pack, its part of what was done once left out."""
    separate_s: float
    """Of the command `optimize`."""
    pack_ships: str
    separate_ships: str
    ratio: float
    """Time of the pack's plan over that of the separate one, in turns."""
    ratio_interval: tuple[float, float]
    error: float
    """Largest difference of the answers, relative to the separate one's largest number."""


@dataclass(frozen=True)
class PackCost:
    """All of it."""

    processor: str
    effort: str
    pack_s: float
    separate_s: float
    cost: float
    rows: tuple[PackRow, ...]


def usual_targets() -> tuple[PackTarget, ...]:
    """This machine, one thread, AVX2, and both; those that are here."""
    found = [PackTarget("here")]
    found += [PackTarget("one-thread", threads=1)] if available_cores() > 1 else []
    if "avx512f" in host().instructions:
        found.append(PackTarget("avx2", isa="avx2"))
        found += [PackTarget("avx2-one-thread", threads=1, isa="avx2")] if available_cores() > 1 else []
    return tuple(found)


def compare(
    name: str,
    model: Path,
    inputs: dict[str, np.ndarray],
    targets: Sequence[PackTarget],
    words: Sequence[str],
    rounds: int,
) -> PackCost:
    """Runs all of it.

    Raises:
        RuntimeError: a command fails.
    """
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        given = folder / "inputs.npz"
        np.savez(given, **inputs)  # type: ignore[arg-type]  # its stub takes a name for a flag
        listed = folder / "targets.toml"
        listed.write_text("\n".join(_table(target) for target in targets))
        common = ["--input", str(given), *words]
        packed = folder / "all.pack"
        pack_s = _command(
            folder / "cache-pack", "pack", str(model), "--targets", str(listed), "-o", str(packed), *common
        )
        seconds, artifacts = {}, {}
        for target in targets:
            artifacts[target.name] = folder / f"{target.name}.bricolage"
            seconds[target.name] = _command(
                folder / f"cache-{target.name}", "optimize", str(model), "-o", str(artifacts[target.name]), *_flags(target), *common
            )  # fmt: skip
        os.environ["BRICOLAGE_CACHE"] = str(folder / "cache-race")
        rows = tuple(_rows(name, targets, packed, artifacts, seconds, inputs, rounds))
    total = sum(seconds.values())
    effort = words[words.index("--effort") + 1] if "--effort" in words else "quick"
    return PackCost(str(host()), effort, pack_s, total, pack_s / total, rows)


def _rows(
    name: str, targets: Sequence[PackTarget], packed: Path, artifacts: dict[str, Path], seconds: dict[str, float],
    inputs: dict[str, np.ndarray], rounds: int,
) -> Iterator[PackRow]:  # fmt: skip
    parents = {target.name: parent.name if parent else "" for target, parent in tree(tuple(targets))}
    for target in targets:
        ours = bricolage.load(packed, target=target.name)
        theirs = bricolage.load(artifacts[target.name])
        runs = {
            _CHALLENGER: make_turn(partial(ours.run, inputs), 3, 1),
            _SEPARATE: make_turn(partial(theirs.run, inputs), 3, 1),
        }
        ratio = time_in_turns(runs, rounds).ratio(_CHALLENGER, _SEPARATE)
        assert ratio is not None and ours.choice is not None
        answers = [
            (np.asarray(a), np.asarray(b))
            for a, b in zip(ours.run(inputs).values(), theirs.run(inputs).values(), strict=True)
        ]
        error = max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in answers if a.dtype.kind == "f")
        yield PackRow(
            name, target.name, parents[target.name], ours.choice.entry.seconds, seconds[target.name],
            ours.plan.buckets[0].race.chosen, theirs.plan.buckets[0].race.chosen, 1 / ratio.value,
            (1 / ratio.high, 1 / ratio.low), error,
        )  # fmt: skip


def _table(target: PackTarget) -> str:
    values = {key: value for key, value in asdict(target).items() if value not in (None, "")}
    return "\n".join(["[[target]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""])


def _flags(target: PackTarget) -> list[str]:
    found = ["--precision", target.precision]
    found += ["--threads", str(target.threads)] if target.threads else []
    found += ["--isa", target.isa] if target.isa else []
    return found + (["--memory-limit", str(target.memory_mb)] if target.memory_mb else [])


def _command(cache: Path, *words: str) -> float:
    """Seconds of a command with an empty cache."""
    began = time.monotonic()
    environment = {**os.environ, "BRICOLAGE_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "bricolage", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != OK:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")
    return time.monotonic() - began


def main() -> None:
    """Prints a row for each target, and what all of them cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="mobilenet-v3", help="a workload's name")
    parser.add_argument("--model", type=Path, help="an ONNX file instead; needs --input")
    parser.add_argument("--input", type=Path, help="its inputs (.npz)")
    parser.add_argument("--targets", type=Path, help="a file; default: all, one thread, AVX2, AVX2 with one thread")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.model is not None:
        name, model, inputs = given.model.stem, given.model, dict(np.load(given.input))
    else:
        workload = workloads()[given.workload]
        name, model, inputs = given.workload, export(workload), dict(workload.example_inputs(0))
    targets = read_targets(given.targets) if given.targets else usual_targets()
    found = compare(name, model, inputs, targets, ["--effort", given.effort], given.rounds)
    keep(asdict(found), given.output)
    if given.json:
        print(json.dumps(asdict(found), indent=1))
        return
    for row in found.rows:
        print(row)
    print(f"pack {found.pack_s:.0f} s, separate {found.separate_s:.0f} s, cost {found.cost:.2f}")


if __name__ == "__main__":
    main()
