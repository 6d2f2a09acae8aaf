"""The native engine on emulated Arm processors (QEMU), and its inner loops on models of Arm cores (llvm-mca).

    python -m benchmarks.arm --json
    python -m benchmarks.arm --part regions --set neon --count 200
    python -m benchmarks.arm --part regions --part suite --workers 1 --output out/arm.json

Parts:
    suite     the ONNX backend suite: the same passes and refusals as here
    regions   random regions against float64, for each instruction set
    products  products of bytes against numpy, bit for bit, for each instruction set
    networks  exported networks against the answers of the plan here; sets that a processor lacks are refused
    loops     the inner loop of each micro-kernel: its share of the time of its multiply-adds alone, and what it spills

The baseline runs on two processors without optional instructions, Cortex-A53 and A72: an instruction that they lack ends the run.
With --output, results of regions, products and the suite are kept in a file of lines next to it, so that a run that was interrupted
goes on where it stopped, as long as no code changed. A tenth of regions, and of the suite, is compiled at the product's level.
An emulator says nothing about time, and a model of a core nothing about caches.
It exits with 1 where an answer differs, or a loop is further from its bound than is known.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bricolage
from benchmarks.arm.emulation import PROCESSORS, SETS, Processor, emulate, find_lacking_tool
from benchmarks.arm.exported_networks import NETWORKS, run_network
from benchmarks.arm.inner_loops import analyse, find_lacking_analyser
from benchmarks.arm.random_regions import Counts, compare_integer_products, compare_random_regions
from benchmarks.arm.suite import compare_suite
from benchmarks.exported.contestants import NotBuilt
from benchmarks.tools.output import ResultLines, keep
from bricolage.base.options import available_cores
from bricolage.conformance.suite import suite_cases, tenth
from bricolage.native.cpu.isa import available_isas
from bricolage.native.cpu.toolchain import LEVEL_VARIABLE

_MOST_TOLD = 10
_CODE = (".py", ".c", ".h")
_MADE_BY = "made by"
"""Name of the line of kept results with a digest of the code."""
_BASELINE = (Processor("neon", "cortex-a53"), Processor("neon", "cortex-a72"))


def _processors(sets: list[str]) -> list[Processor]:
    """Each set on the smallest processor that has it."""
    return [Processor(name, PROCESSORS[name]) for name in sets]


def _run_suite(asked: argparse.Namespace) -> list[dict[str, Any]]:
    cases = [case for case in suite_cases() if asked.match in case.name]
    processors = [_BASELINE[1], *_processors([name for name in asked.set if name != "neon"])]
    rows = compare_suite(tenth(cases) if asked.tenth else cases, asked.workers, processors, asked.kept)
    return [{**asdict(row), "right": not row.differences and not row.illegal} for row in rows]


def _run_regions(asked: argparse.Namespace) -> list[dict[str, Any]]:
    return _rows(compare_random_regions(_processors(asked.set), asked.count, asked.workers, asked.kept))


def _run_products(asked: argparse.Namespace) -> list[dict[str, Any]]:
    processors = [*_processors(asked.set), *_BASELINE[1:]]
    return _rows(compare_integer_products(processors, asked.count, asked.workers, asked.kept))


def _rows(counts: list[Counts]) -> list[dict[str, Any]]:
    return [{**asdict(each), "right": not each.differences and not each.illegal} for each in counts]


def _run_networks(asked: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in asked.network or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                answers = [asdict(answer) for answer in run_network(name, Path(folder))]
            except NotBuilt as error:
                answers = [{"network": name, "right": False, "text": str(error)}]
        print(f"{name}: {sum(each['right'] for each in answers)} of {len(answers)} right", file=sys.stderr, flush=True)
        rows += answers
    return rows


def _run_loops(asked: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for processor in _processors(asked.set):
        emulate(processor)
        rows += [
            {**asdict(share), "right": share.is_held, "reaches_floor": share.reaches_floor}
            for share in analyse(available_isas()[0])
        ]
    return rows


PARTS: Mapping[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "loops": _run_loops,
    "products": _run_products,
    "networks": _run_networks,
    "regions": _run_regions,
    "suite": _run_suite,
}


def describe_rows(part: str, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each row of a part, and what is wrong in it."""
    lines = []
    for row in rows:
        mark = "" if row["right"] else "MISSED: "
        if part == "loops":
            told = f"{row['isa']} {row['kernel']}: {row['multiplies']} {row['instruction']} of {row['instructions']} instructions"
            known = "" if row["reaches_floor"] else ", below the floor"
            lines.append(
                f"{mark}{told}, {row['spills']} on the stack, {row['share']:.3f} of the bound on {row['core']}{known}"
            )
        elif part == "networks":
            lines.append(f"{mark}{row['network']}, {row.get('isa')} on {row.get('processor')}: {row['text']}")
        else:
            processor = f"{row['processor']['isa']} on {row['processor']['model']}"
            counts = f"{row['regions']} compared" if "regions" in row else f"{row['there']}, here {row['here']}"
            wrong = len(row["differences"])
            lines.append(
                f"{mark}{part}, {processor}: {counts}, {wrong} differences, {row['illegal']} illegal instructions"
            )
            lines += [f"  {text}" for text in row["differences"][:_MOST_TOLD]]
    return lines


def _kept_lines(output: Path | None) -> ResultLines:
    """Results of an earlier run with this code and the same level of optimisation, which another run goes on with."""
    kept = ResultLines(output and output.with_suffix(".jsonl"))
    made_by = hashlib.sha256(os.environ.get(LEVEL_VARIABLE, "").encode())
    for folder in (Path(bricolage.__file__).parent, Path(__file__).parent):
        for file in sorted(folder.rglob("*")):
            made_by.update(file.read_bytes() if file.suffix in _CODE else b"")
    if kept.values.get(_MADE_BY) != [made_by.hexdigest()]:
        if kept.values:
            print("the code changed since the results that were kept: it begins again", file=sys.stderr)
        kept.forget()
        kept.add(_MADE_BY, made_by.hexdigest())
    return kept


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="repeatable; default: all")
    parser.add_argument(
        "--set", action="append", choices=list(SETS), help="an instruction set, repeatable; default: all"
    )
    parser.add_argument("--count", type=int, default=1600, help="random regions, and products, for each set")
    parser.add_argument("--network", action="append", choices=NETWORKS, help="repeatable; default: all")
    parser.add_argument("--match", default="", help="only cases of the suite whose name contains this")
    parser.add_argument("--tenth", action="store_true", help="only a fixed tenth of the suite")
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--output", type=Path, help="keep the rows as JSON, after each part")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    asked = parser.parse_args()
    asked.set = asked.set or list(SETS)
    asked.kept = _kept_lines(asked.output)
    rows: dict[str, list[dict[str, Any]]] = {}
    for part in asked.part or PARTS:
        lacking = find_lacking_tool() or (find_lacking_analyser() if part == "loops" else "")
        if lacking:
            print(f"{part} is left out: {lacking} is not here", file=sys.stderr)
            continue
        rows[part] = PARTS[part](asked)
        print("\n".join(describe_rows(part, rows[part])), file=sys.stderr if asked.json else sys.stdout, flush=True)
        keep(rows, asked.output)
    if asked.json:
        print(json.dumps(rows, indent=1))
    return int(not rows or not all(row["right"] for part in rows.values() for row in part))


if __name__ == "__main__":
    sys.exit(main())
