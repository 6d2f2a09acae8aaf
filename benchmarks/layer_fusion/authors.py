"""Whether what the authors' program of Optimus finds fits its buffer: `python -m benchmarks.layer_fusion.authors CHECKOUT`.

    git clone https://github.com/SheaCai/optimus CHECKOUT
    python -m benchmarks.layer_fusion.authors CHECKOUT --network mobilenet
    python -m benchmarks.layer_fusion.authors CHECKOUT --network mobilenet --fitting

CHECKOUT is the authors' repository, whose code is run as it stands, on its own architecture and dataflow, batch 4. For each group
of several layers: its cost there, the words that the outputs of its layers take in the blocks that were chosen, and the cost of the
same group in this model's best blocks. The program finds rows and channels as real numbers that fit, then rounds both up. `beyond`
is a group whose outputs alone are more than the buffer. With `--fitting` rows, channels and images are rounded down, and nothing
else is changed. Beside the sums: what the dynamic programme finds here, in blocks that fit, and rounded up as the program does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.layer_fusion.networks import NETWORKS, OPTIMUS
from bricolage.search.layer_groups.group_search import hafs
from bricolage.search.layer_groups.group_traffic import TrafficModel
from bricolage.work.bits import of

_BATCH = 4
_LIMIT_S = 300.0
_WIDTH, _ROWS, _CHANNELS, _IMAGES = 3, 4, 5, 6
"""Places in a block of the authors' program."""


@dataclass(frozen=True)
class AuthorsGroup:
    """Layers that the authors' program computes together."""

    layers: tuple[str, ...]
    cost: float
    """As the program counts it."""
    words: float
    """Of the outputs of layers with weights, in the blocks that it chose."""
    least_cost: float
    """In this model's best blocks that fit."""

    @property
    def beyond(self) -> bool:
        """Whether the outputs alone are more than the buffer."""
        return self.words > OPTIMUS.words


def output_words(blocks: Sequence[Sequence[float] | None]) -> float:
    """Words of the outputs of a group's layers in their blocks; those without weights have none."""
    return math.fsum(one[_WIDTH] * one[_ROWS] * one[_CHANNELS] * one[_IMAGES] for one in blocks if one is not None)


def search_groups(checkout: Path, name: str, *, fitting: bool) -> tuple[float, list[AuthorsGroup]]:
    """The cost that the authors' program finds for a network, and its groups."""
    sys.path.insert(0, str(checkout))
    sys.setrecursionlimit(20_000)
    scheduling: Any = importlib.import_module("fusion.scheduling")
    importlib.import_module("fusion.scheduling.batch_size").init(_BATCH)
    files = [checkout / "fusion" / part for part in ("arch/3_level_mem_64Reg.json", "dataflow/dataflow_Ow_Cout.json")]
    architecture, dataflow = scheduling.extract_info(*map(str, files))
    resource = scheduling.Resource.arch(architecture)
    authors_name = "vggnet" if name == "vgg" else name
    network = importlib.import_module("fusion.nn_models").import_network(authors_name)
    cost_model = scheduling.CostModel(network, resource)
    search = scheduling.ScheduleGenerator(network, resource, cost_model, scheduling.LoopLowerBound.dataflow(dataflow))
    if fitting:
        _round_down(importlib.import_module("fusion.scheduling.interlayer"))
    found, cost = search.schedule_search()
    layers, model = list(network), TrafficModel(NETWORKS[name](_BATCH), OPTIMUS)
    groups = []
    for group, blocks, _, group_cost, _ in found:
        members = sorted(map(layers.index, group))
        least_cost = model.of(of(members), members).cost
        groups.append(AuthorsGroup(tuple(group), float(group_cost), output_words(blocks), least_cost))
    return float(cost), groups


def least_costs(name: str) -> dict[str, float | None]:
    """Costs that the dynamic programme finds here: in blocks that fit, and in blocks that are rounded up as in the authors'
    program. None where it did not end in time."""
    levels = {"fitting": OPTIMUS, "rounded_up": replace(OPTIMUS, rounds_up=True)}
    plans = {rule: hafs(TrafficModel(NETWORKS[name](_BATCH), level), _LIMIT_S) for rule, level in levels.items()}
    return {rule: None if plan is None else plan.cost for rule, plan in plans.items()}


def _round_down(interlayer: Any) -> None:
    """Rows, channels and images of groups are rounded down; what lies a thousandth below a whole number is that number."""
    interlayer.math = SimpleNamespace(floor=math.floor, ceil=lambda value: math.floor(value + 1e-3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the groups of several layers, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="mobilenet")
    parser.add_argument("--fitting", action="store_true", help="round the blocks of groups down")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if not (given.checkout / "fusion" / "scheduling").is_dir():
        parser.error(f"{given.checkout} is no checkout of the authors' repository")
    started = time.perf_counter()
    cost, groups = search_groups(given.checkout.resolve(), given.network, fitting=given.fitting)
    least_cost = math.fsum(group.least_cost for group in groups)
    here = least_costs(given.network)
    if given.json:
        rows = [{**asdict(group), "beyond": group.beyond} for group in groups]
        print(json.dumps({"cost": cost, "least_cost": least_cost, "here": here, "groups": rows}, indent=1))
        return 0
    for group in groups:
        if len(group.layers) > 1:
            verdict = "beyond the buffer" if group.beyond else ""
            text = (
                f"{group.cost:12.4g} {group.words:10.0f} words {group.least_cost:12.4g} here  {' '.join(group.layers)}"
            )
            print(f"{text}  {verdict}".rstrip())
    several = sum(len(group.layers) > 1 for group in groups)
    seconds = time.perf_counter() - started
    print(
        f"{given.network}: {cost:.4g}, {several} groups of several layers, {sum(group.beyond for group in groups)} of them beyond"
    )
    print(f"the buffer of {OPTIMUS.words} words; the same groups in blocks that fit {least_cost:.4g}; {seconds:.0f} s")
    costs = {rule: "not done in time" if least is None else f"{least:.4g}" for rule, least in here.items()}
    print(
        f"the dynamic programme here: {costs['fitting']} in blocks that fit, {costs['rounded_up']} rounded up likewise"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
