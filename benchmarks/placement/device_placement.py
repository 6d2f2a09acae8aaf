"""Operators of a network on several devices, by every search: `python -m benchmarks.placement.device_placement INSTANCE.json`.

    python -m benchmarks.placement.device_placement throughput-inputs/LayerGraphs/bert24_inference.json --k 6 --json
    python -m benchmarks.placement.device_placement throughput-inputs/LayerGraphs/gnmt_training.json --expert EXPERT.json \\
        --search pipedream,order,dp,ip
    python -m benchmarks.placement.device_placement throughput-inputs/LayerGraphs/gnmt_training.json --limit 240 \\
        --search dp,reinforce,ppo,ip
    python -m benchmarks.placement.device_placement latency-inputs/LayerGraphs/bert24_inference.json --form latency --json
    python -m benchmarks.placement.device_placement latency-inputs/LayerGraphs/bert24_inference.json --form order --k 3

The files are those of Tarnawski et al. (NeurIPS 2020), github.com/msr-fiddle/dnn-partitioning. `--k` is the number of accelerators;
without it the file says. Three forms: `throughput`, the largest load of a device when samples follow one another; `latency`, when
one sample is done, with one block of operators for each accelerator; `order`, the same when devices run operators one by one and a
transfer is paid for each edge, by list scheduling. `bound` is proven: for `dp` of chains of parts, for the others of all
placements. Milliseconds are those of the files; only `seconds` and `memory_mb` (of the whole process, at most) are measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.placement.run_searches import judge_placement, place, together
from benchmarks.placement.split_operators import os_dpos
from benchmarks.scheduling.schedule_instances import read_placement
from bricolage.base.codec import parse
from bricolage.errors import BricolageError
from bricolage.search.devices.baechi import m_etf, m_sct, m_topo
from bricolage.search.devices.device_problem import DevicePlacementProblem, PlacedOperators
from bricolage.search.devices.fastt import dpos
from bricolage.search.devices.genetic_placement import random_keys
from bricolage.search.devices.instance_files import by_hand, read_instance
from bricolage.search.devices.learned_placement import LEARNED
from bricolage.search.devices.list_placement import cpop, heft, peft
from bricolage.search.devices.sample_latency import least_latency
from bricolage.search.devices.solve import SEARCHES
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.schedule import Schedule, check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem

_SPLIT_UP_TO = 100
"""Operators; each split is a schedule of its own."""
LISTS: Mapping[str, Callable[[ScheduleProblem], Schedule]] = {
    "HEFT": heft,
    "CPOP": cpop,
    "PEFT": peft,
    "DPOS": dpos,
    "m-TOPO": m_topo,
    "m-ETF": m_etf,
    "m-SCT": m_sct,
    "BRKGA": random_keys,
}


@dataclass(frozen=True)
class Found:
    """What one method found; infinite and None where there is no such placement."""

    method: str
    ms: float | None
    bound: float
    seconds: float
    note: str = ""


def throughput(
    problem: DevicePlacementProblem, searches: Sequence[str], limit_s: float, expert: Path | None
) -> tuple[PlacedOperators, list[PlacedOperators]]:
    """The best placement, and those of all searches and of an expert."""
    found = place(problem, searches, limit_s=limit_s, more=LEARNED)
    best = together(found)
    if expert is not None:
        found.append(judge_placement(problem, by_hand(problem, parse(expert.read_bytes())), "by hand"))
    return best, found


def lists(problem: ScheduleProblem) -> list[Found]:
    """What list scheduling makes of an instance."""
    found, bound = [], lower_bound(problem)
    for name, method in LISTS.items():
        started = time.monotonic()
        schedule = method(problem)
        check(problem, schedule)
        found.append(Found(name, schedule.makespan_ms, bound, time.monotonic() - started))
    if len(problem) <= _SPLIT_UP_TO:
        started = time.monotonic()
        changed, schedule = os_dpos(problem, [task for task in range(len(problem)) if len(problem.times[task]) > 1])
        check(changed, schedule)
        note = f"{len(changed) - len(problem)} operators more; the bound is that of the operators in one piece"
        found.append(Found("OS-DPOS", schedule.makespan_ms, bound, time.monotonic() - started, note))
    return found


def told(one: PlacedOperators) -> Found:
    """As a row."""
    return Found(one.method, one.max_load if one.devices else None, one.bound, one.seconds, one.note)


def report(given: argparse.Namespace) -> dict[str, Any]:
    """What is printed."""
    facts: dict[str, Any] = {"instance": given.instance.stem, "form": given.form}
    if given.form == "order":
        problem = read_placement(given.instance, given.k or read_instance(given.instance).accelerators)
        facts |= {"k": len(problem.cores) - 1, "methods": lists(problem)}
    elif given.form == "latency":
        placing = read_instance(given.instance, given.k)
        best = least_latency(placing, limit_s=given.limit)
        facts |= {"k": placing.accelerators, "latency": told(best).ms, "bound": best.bound, "gap": best.gap}
        facts |= {"seconds": best.seconds, "methods": [told(best)]}
    else:
        placing = read_instance(given.instance, given.k)
        best, found = throughput(placing, given.search.split(","), given.limit, given.expert)
        facts |= {"k": placing.accelerators, "max_load": told(best).ms, "bound": best.bound, "gap": best.gap}
        facts |= {"seconds": best.seconds, "methods": [told(one) for one in found]}
    facts["methods"] = [asdict(one) for one in facts["methods"]]
    facts["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what each method finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instance", type=Path)
    parser.add_argument("--k", type=int, help="accelerators")
    parser.add_argument("--form", choices=("throughput", "latency", "order"), default="throughput")
    parser.add_argument("--search", default="pipedream,order,dp", help=f"among {', '.join([*SEARCHES, *LEARNED])}")
    parser.add_argument("--expert", type=Path, help="a placement by hand, to be judged beside the others")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.k is not None and given.k < 1:
        parser.error("--k is at least 1")
    try:
        facts = report(given)
    except (BricolageError, OSError, ValueError, KeyError, TypeError) as error:
        print(f"{given.instance}: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(facts, indent=1))
        return 0
    print(f"{facts['instance']}, {facts['k']} accelerators, {facts['form']}, {facts['memory_mb']:.0f} MB")
    for one in facts["methods"]:
        ms = "no placement" if one["ms"] is None else f"{one['ms']:.4f} ms"
        print(f"  {one['method']:30} {ms:>16}  bound {one['bound']:.4f}  {one['seconds']:.2f} s  {one['note']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
