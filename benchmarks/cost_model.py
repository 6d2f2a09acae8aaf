"""How far a learnt model of costs is off on networks, and machines, that it has not seen.

    python -m benchmarks.cost_model                                   on what the cost database holds
    python -m benchmarks.cost_model --workload six,wide --budget 30   measures their regions first, so that the database holds them
    python -m benchmarks.cost_model --workload six --budget 20 --threads 1 --isa avx2     as on another class of machine
    python -m benchmarks.cost_model --import zen5.jsonl xeon.jsonl    together with what others have exported
    python -m benchmarks.cost_model --in-use                          how far the model in use is off on what the database holds
    python -m benchmarks.cost_model --decide minilm-l6,resnet-50      what decisions lose that rest on it, and gain in time

Each network is left out once, and a model that was trained on all others predicts what its regions take on each backend; the same
with machines, where there are several. `regret` is what the implementation with the least predicted time takes over the
fastest one, less one.

With `--decide` each workload is decided three times, each time with nothing known but a model that has not seen it: by measuring
everything, with what is surely slow left out, and by predictions alone. Then the three plans race. There, `regret` is what a plan
takes over that of the first decision, less one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.latency import select
from benchmarks.tools.isa import restart_under
from benchmarks.tools.opening import state_of
from benchmarks.workloads import export, workloads
from bricolage.api.bench import CHALLENGER, bench
from bricolage.api.cost_model import learning_samples, to_json, train_costs
from bricolage.api.optimize import optimize
from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.cache import VARIABLE
from bricolage.base.deadline import Deadline
from bricolage.base.options import ISAS, Options, available_cores
from bricolage.costs.database import Database
from bricolage.costs.models.learned.fitting import Errors, Sample, errors_of, fit_costs
from bricolage.costs.models.learned.installed import model_in_use, own_model
from bricolage.driver.region_costs import measure_regions
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.errors import BricolageError
from bricolage.plan.plan import Bucket

WAYS: Mapping[str, Options] = {
    "measured": Options(predict=False),
    "pruned": Options(),
    "instant": Options(effort="instant"),
}
"""Of deciding: the first is what the others are compared with."""


@dataclass(frozen=True)
class Decided:
    """One decision of one workload, and how its plan did against that of the first way."""

    workload: str
    way: str
    chosen: str
    seconds: float
    """That the decision took."""
    ms: float
    """Median in the race of all three."""
    regret: float
    left_out: int
    """Measurements of regions that were predicted instead."""
    stages: Mapping[str, float]
    """Seconds."""


def collect(names: Sequence[str], budget: float, threads: int) -> None:
    """Measures networks whole, and their regions for `budget` seconds each, on what compiles quickly. Nothing is decided: what a
    decision does beyond that teaches a model of costs nothing."""
    backends = [backend for backend in registry.available(None) if not backend.compiles_slowly]
    options = Options(predict=False, threads=threads)
    for name in names:
        try:
            with Database() as database, state_of(workloads()[name], options, backends, database) as state:
                for stage in (Reference(), Baselines(every=True)):
                    stage.run(state, Deadline(budget))
                measure_regions(state.original, Deadline(budget))
        except BricolageError as error:
            print(f"{name}: {error.sentence}", file=sys.stderr)


def decide(name: str, samples: Sequence[Sample], budget: float | None) -> list[Decided]:
    """Decides a workload in each way, in a cache of its own, and races the plans.

    Raises:
        BricolageError: it cannot be decided.
    """
    workload = workloads()[name]
    path, inputs = export(workload), workload.example_inputs(0)
    with state_of(workload, Options(), registry.available(None)) as state:
        digest = state.digest
    model = fit_costs([one for one in samples if one.network != digest], {})
    with scratch.using(scratch.temporary()) as folder:
        made: dict[str, tuple[Bucket, float]] = {}
        for way, options in WAYS.items():
            with cache_in(folder / f"cache-{way}"):
                own_model().write_text(to_json(model), encoding="utf-8")
                start = time.monotonic()
                own = options if way == "instant" else replace(options, budget_s=budget)
                fast = optimize(path, own, inputs=inputs)
                made[way] = fast.plan.buckets[0], time.monotonic() - start
                fast.save(folder / f"{way}.bricolage")
        first, *others = WAYS
        with cache_in(folder / "cache-race"):
            rivals = [folder / f"{way}.bricolage" for way in others]
            raced = bench(folder / f"{first}.bricolage", Options(), inputs=inputs, rivals=rivals).buckets[0]
    times = {one.name.partition(" (rival")[0]: one.median_ms for one in raced.race.contestants if one.median_ms}
    times[first] = times[CHALLENGER]
    return [
        Decided(
            name,
            way,
            bucket.race.chosen,
            seconds,
            times[way],
            times[way] / times[first] - 1.0,
            bucket.record.model_use.left_out if bucket.record.model_use is not None else 0,
            dict(bucket.record.seconds),
        )
        for way, (bucket, seconds) in made.items()
    ]


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Within it, bricolage and its workers keep what they learn in a new folder."""
    folder.mkdir(mode=0o700)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost_model", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", default="", help="names or families to measure first, separated by commas")
    parser.add_argument(
        "--budget", type=float, help="seconds for each workload; 30 for --workload, the effort's for --decide"
    )
    parser.add_argument("--threads", type=int, default=available_cores(), help="for --workload")
    parser.add_argument(
        "--isa", default="", choices=ISAS, help="for --workload: keep backends to it, as far as they can be"
    )
    parser.add_argument(
        "--import", dest="files", type=Path, nargs="*", default=[], help="what `bricolage costs export` wrote"
    )
    parser.add_argument("--decide", default="", help="names or families to decide in three ways, separated by commas")
    parser.add_argument(
        "--in-use", action="store_true", help="only how far the model in use is off on what the database holds"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.isa:
        restart_under(given.isa)
    if given.workload:
        collect(select(given.workload.split(",")), given.budget or 30.0, given.threads)
    with (
        tempfile.TemporaryDirectory() as folder,
        Database() as known,
        Database(Path(folder) / "costs.sqlite") as database,
    ):
        database.import_lines(known.export_lines())
        for file in given.files:
            database.import_lines(file.read_text(encoding="utf-8").splitlines())
        if given.decide:
            show_decisions(select(given.decide.split(",")), learning_samples(database), given.budget, given.json)
            return
        if given.in_use:
            show_in_use(learning_samples(database), given.json)
            return
        trained = train_costs(database)
    if given.json:
        found = trained.by_network
        told = {} if found is None else {n: getattr(found, n) for n in ("mape", "rank_correlation", "regret")}
        by_machine = None if trained.by_machine is None else asdict(trained.by_machine)
        print(json.dumps({**told, "by_network": found and asdict(found), "by_machine": by_machine}, indent=1))
        return
    print(f"{trained.samples} measurements, {trained.networks} networks")
    print(_HEAD.format("left out"))
    for what, errors in (("networks", trained.by_network), ("machines", trained.by_machine)):
        if errors is not None:
            print(_row(what, errors))


def show_in_use(samples: Sequence[Sample], as_json: bool) -> None:
    """Prints the errors of the model that decisions use here."""
    model = model_in_use()
    errors = errors_of(model, samples) if model is not None else None
    if as_json:
        print(json.dumps(errors and asdict(errors), indent=1))
    elif model is None or errors is None:
        print(f"no model is in use here, or it knows none of {len(samples)} measurements")
    else:
        print(f"{model.title}\n\n{_HEAD.format('measured here')}\n{_row('networks', errors)}")


def show_decisions(names: Sequence[str], samples: Sequence[Sample], budget: float | None, as_json: bool) -> None:
    """Decides and prints, each workload as soon as it is done."""
    found: list[Decided] = []
    if not as_json:
        print("| workload | way | ships | ms | regret | left out | seconds |")
        print("|---|---|---|---:|---:|---:|---:|")
    for name in names:
        try:
            own = decide(name, samples, budget)
        except BricolageError as error:
            print(f"{name}: {error.sentence}", file=sys.stderr)
            continue
        found += own
        for one in [] if as_json else own:
            cells = f"{one.ms:.3g} | {one.regret:+.1%} | {one.left_out} | {one.seconds:.1f}"
            print(f"| {one.workload} | {one.way} | {one.chosen} | {cells} |", flush=True)
    regrets = {way: [one.regret for one in found if one.way == way] for way in WAYS}
    told = {way: {"median": median(own), "worst": max(own)} for way, own in regrets.items() if own}
    if as_json:
        print(json.dumps({"regret": told, "decisions": [asdict(one) for one in found]}, indent=1))
        return
    for way, regret in told.items():
        print(f"{way}: regret {regret['median']:+.1%} in the median, {regret['worst']:+.1%} at worst")


_HEAD = (
    "| {} | samples | mean error | median | rank correlation | regret | worst | in the interval |\n|---|" + "---:|" * 7
)


def _row(what: str, errors: Errors) -> str:
    cells = [f"{errors.mape:.1%}", f"{errors.median_error:.1%}", f"{errors.rank_correlation:.3f}"]
    cells += [f"{errors.regret:.1%}", f"{errors.worst_regret:.1%}", f"{errors.covered:.0%}"]
    return f"| {errors.groups} {what} | {errors.samples} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
