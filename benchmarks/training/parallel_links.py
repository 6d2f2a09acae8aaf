"""Plans of training steps, predicted and run over links of three bandwidths: `python -m benchmarks.training.parallel_plans --links
...`."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.tools.links import Networks, PlanProcesses, link_of
from bricolage.base.codec import decode
from bricolage.base.options import available_cores
from bricolage.device.description import DeviceTables
from bricolage.device.host import host
from bricolage.train.run.document import write_plan
from bricolage.train.run.launch_plan import PlanResult, read_result
from bricolage.train.run.plan_worker import GROUPS, SHARDED, SINGLE
from bricolage.train.run.planning import plan_step
from bricolage.train.step.spec import Optimiser, StepSpec

CODE = "benchmarks.training.training_networks"
STEPS: dict[str, StepSpec] = {
    "encoder": StepSpec(f"{CODE}:encoder", f"{CODE}:token_batch", batch_size=16, optimiser=Optimiser("adam")),
    "wide": StepSpec(f"{CODE}:wide_mlp", f"{CODE}:mlp_batch", batch_size=8, optimiser=Optimiser("adam")),
    "words": StepSpec(f"{CODE}:word_classifier", f"{CODE}:word_batch", batch_size=32, optimiser=Optimiser("adam")),
    "mlp": StepSpec(f"{CODE}:mlp", f"{CODE}:mlp_batch", batch_size=256, optimiser=Optimiser("adam")),
}
PARALLEL = "data parallel"
_LATENCY_US = 50.0
"""Of a message between networks, beyond what a call takes."""
_CLEAR = 0.05
"""Two ways are in an order where their measured times differ by this part."""


@dataclass(frozen=True)
class LinkRow:
    """A way to run a step over links of a bandwidth."""

    network: str
    bandwidth: str
    way: str
    predicted_ms: float
    measured_ms: float
    error: float
    relative_error: float
    """Of its time by the single process's, predicted against measured: a machine that is slower than at planning does not
    count."""
    kept: bool


@dataclass(frozen=True)
class LinkReport:
    """What `--links` prints."""

    rows: tuple[LinkRow, ...]
    median_error: float
    worst_error: float
    median_relative_error: float
    pairs: int
    """Of ways that differ clearly in measured time, on one network and bandwidth."""
    pairs_in_order: int
    """Of these, as predicted."""
    kept_ratio: float
    """The worst of the kept way's time by that of the faster of data parallelism and a single process."""
    layouts_ratio: float | None
    """The best of divided operators' time by that of data parallelism; None where nothing was divided."""


def run(networks: Sequence[str], bandwidths: Sequence[str], processes: int, given: PlanProcesses) -> LinkReport:
    """Plans each step for each bandwidth, and runs the plans.

    Where there are cores enough and hosts are single processes, each process has a core of its own, and is planned as a described
    device; else processes share this machine's cores, and are planned as such.

    Raises:
        NoNetworks: this machine does not let networks be made.
    """
    rows: list[LinkRow] = []
    ratios: list[float] = []
    layouts: list[float] = []
    orders: list[tuple[int, int]] = []
    apart = given.host == 1 and processes <= available_cores()
    for network, bandwidth in itertools.product(networks, bandwidths):
        with Networks(processes // given.host, bandwidth) as joined, tempfile.TemporaryDirectory() as folder:
            gbytes = link_of(bandwidth).gbytes
            devices = _apart(processes, gbytes) if apart else DeviceTables(processes, gbytes, _host(given, processes))
            write_plan(plan_step(replace(STEPS[network], devices=devices), seconds=given.seconds / 4), Path(folder))
            joined.run_plan(Path(folder), replace(given, apart=apart))
            found = read_result(Path(folder))
        assert found is not None
        rows += _rows(network, bandwidth, found)
        orders.append(_order(found))
        measured = {way: one.median_ms for way, one in found.measured.items()}
        ratios.append(measured[found.kept] / min(measured[way] for way in (SINGLE, PARALLEL) if way in measured))
        divided = [measured[way] for way in (SHARDED, GROUPS) if way in measured]
        if divided and PARALLEL in measured:
            layouts.append(min(divided) / measured[PARALLEL])
    errors = [abs(one.error) for one in rows]
    relative = [abs(one.relative_error) for one in rows if one.way != SINGLE]
    pairs, right = (sum(column) for column in zip(*orders, strict=True))
    least = min(layouts, default=None)
    return LinkReport(tuple(rows), median(errors), max(errors), median(relative), pairs, right, max(ratios), least)


def _host(given: PlanProcesses, processes: int) -> int | None:
    return given.host if 1 < given.host < processes else None


def _apart(processes: int, gbytes: float) -> DeviceTables:
    """Devices of one core each, as fast as one here, on links of a bandwidth."""
    device = {
        "name": "core",
        "kind": "cpu",
        "cores": 1,
        "scale": 1.0,
        "memory_gb": host().memory_bytes / processes / 1e9,
    }
    link = {"between": ["core", "core"], "gbytes": gbytes, "latency_us": _LATENCY_US}
    return decode(DeviceTables, {"count": processes, "device": [device], "link": [link]})


def _rows(network: str, bandwidth: str, found: PlanResult) -> list[LinkRow]:
    rows, single = [], found.error(SINGLE)
    for way, one in found.measured.items():
        error = found.error(way)
        if error is not None and single is not None:
            relative = (1.0 + error) / (1.0 + single) - 1.0
            predicted = found.predicted_ms[way]
            rows.append(LinkRow(network, bandwidth, way, predicted, one.median_ms, error, relative, way == found.kept))
    return rows


def _order(found: PlanResult) -> tuple[int, int]:
    """Pairs of ways whose measured times differ clearly, and those of them that were predicted in that order."""
    pairs = right = 0
    for one, other in itertools.combinations(sorted(found.measured, key=lambda way: found.measured[way].median_ms), 2):
        if found.measured[other].median_ms < (1 + _CLEAR) * found.measured[one].median_ms:
            continue
        pairs += 1
        right += found.predicted_ms[one] < found.predicted_ms[other]
    return pairs, right


def show(found: LinkReport, *, as_json: bool) -> None:
    """Prints it."""
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    for one in found.rows:
        told = f"{one.predicted_ms:8.1f} ms predicted {one.measured_ms:8.1f} measured {one.error:+5.0%} ({one.relative_error:+.0%})"
        print(f"{one.network:10} {one.bandwidth:8} {one.way:16} {told}{'  kept' if one.kept else ''}")
    print(
        f"error: median {found.median_error:.1%}, worst {found.worst_error:.1%}; by the single process's times: median ",
        end="",
    )
    print(f"{found.median_relative_error:.1%}")
    print(
        f"{found.pairs_in_order} of {found.pairs} pairs in the predicted order; kept by baseline {found.kept_ratio:.3f}"
    )
    if found.layouts_ratio is not None:
        print(f"divided operators by data parallelism, at best: {found.layouts_ratio:.3f}")
