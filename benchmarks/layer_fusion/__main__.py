"""Groups of layers by memory traffic, by every search: `python -m benchmarks.layer_fusion`.

    python -m benchmarks.layer_fusion --json
    python -m benchmarks.layer_fusion --network googlenet --limit 300
    python -m benchmarks.layer_fusion --machine here --batch 1
    python -m benchmarks.layer_fusion --rounds-up

Networks and architecture are those of Optimus (Cai et al., TECS 2022): batch 4, a buffer of 128 KiB. `cost` is the model's weighted
number of accesses, `memory_mb` what moves to and from the memory; `proven`, that no partition into groups costs less in this
model. With `--rounds-up`, tiles and blocks are fractions that fit, rounded up as in the authors' program, and may hold more than
the buffer. With `--machine here` the buffer is a core's second-level cache, words are float32, and an access costs nanoseconds by
the native engine's own figures; a layer without weights reads and writes memory there, too. `ms_moving` is then what moving takes,
`ms_arithmetic` what the operations take at one core's nominal peak, and `gain_at_most` the part of both together that groups could
save. Nothing is measured but `seconds`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.layer_fusion.networks import NETWORKS, OPTIMUS
from bricolage.device.device import lanes
from bricolage.device.host import host
from bricolage.native.fuse.kernel_layers import buffer_levels
from bricolage.search.layer_groups.group_search import SEARCHES, LayerPlan
from bricolage.search.layer_groups.group_traffic import TrafficModel
from bricolage.search.layer_groups.layer_network import LayerNetwork
from bricolage.search.layer_groups.layer_price import MemoryLevels


@dataclass(frozen=True)
class Row:
    """One search on one network. What `--machine here` does not ask for is None, as is a plan that was not found in time."""

    network: str
    search: str
    groups: int | None
    cost: float | None
    memory_mb: float | None
    proven: bool
    priced: int
    seconds: float
    ms_moving: float | None = None
    ms_arithmetic: float | None = None
    gain_at_most: float | None = None


def here() -> MemoryLevels:
    """A core of this machine; costs are nanoseconds of a float32."""
    device = host()
    return buffer_levels(device.caches.l2_bytes, lanes(device.instructions))


def rows(network: LayerNetwork, levels: MemoryLevels, word_bytes: int, limit_s: float, gflops: float) -> list[Row]:
    """All searches on one network; `gflops` is 0 where costs are no times."""
    operations = 2 * network.batch * sum(layer.weights * layer.size**2 for layer in network.layers)
    arithmetic = operations / gflops / 1e6 if gflops else None
    found: list[Row] = []
    unfused: LayerPlan | None = None
    for name, search in SEARCHES.items():
        begin = time.perf_counter()
        plan = search(TrafficModel(network, levels), limit_s)
        seconds = time.perf_counter() - begin
        if plan is None:
            found.append(Row(network.name, name, None, None, None, False, 0, seconds))
            continue
        unfused = unfused or plan
        megabytes = plan.memory_words * word_bytes / 2**20
        row = Row(network.name, name, len(plan.groups), plan.cost, megabytes, plan.proven, plan.priced, seconds)
        if arithmetic is not None:
            saved = (unfused.cost - plan.cost) / (unfused.cost + 1e6 * arithmetic)
            row = replace(row, ms_moving=plan.cost / 1e6, ms_arithmetic=arithmetic, gain_at_most=saved)
        found.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=sorted(NETWORKS), action="append", help="all of them, by default")
    parser.add_argument("--machine", choices=("optimus", "here"), default="optimus")
    parser.add_argument("--rounds-up", action="store_true", help="blocks are rounded up, as the authors' program does")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="for each search")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.batch < 1 or not given.limit > 0:
        parser.error("give a batch of 1 at least, and more than 0 seconds")
    mine = given.machine == "here"
    device = host()
    gflops = device.peaks.gflops / max(1, len(device.cores)) if mine else 0.0
    found: list[Row] = []
    for name in given.network or NETWORKS:
        network = NETWORKS[name](given.batch)
        levels = replace(here() if mine else OPTIMUS, rounds_up=given.rounds_up)
        found += rows(network, levels, 4 if mine else 2, given.limit, gflops)
        if not given.json:
            _print(found[-len(SEARCHES) :], mine)
    if given.json:
        print(json.dumps({"device": str(device.model), "rows": [asdict(one) for one in found]}, indent=1))
    return 0


def _print(found: Sequence[Row], mine: bool) -> None:
    for one in found:
        if one.cost is None:
            print(f"{one.network:10} {one.search:8} not done after {one.seconds:.0f} s")
            continue
        proven = "proven" if one.proven else ""
        text = f"{one.network:10} {one.search:8} {one.cost:12.4g} {one.memory_mb:8.2f} MB {one.groups:4} groups"
        text += f" {one.seconds:6.1f} s"
        if mine:
            text += (
                f" {one.ms_moving:8.3f} ms moving, {one.ms_arithmetic:8.3f} ms arithmetic, gain {one.gain_at_most:.1%}"
            )
        print(f"{text} {proven}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
