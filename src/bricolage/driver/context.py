"""What every command that measures opens: worker processes, the database, references, self-checks, limits.

`optimize`, `bench`, `tune`, `tailor` and decisions for throughput go through one `DecisionContext`; nothing else makes a `Session`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.backends.interface import Backend
from bricolage.base.budget import DecisionBudget
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.base.undo import undo_on_failure
from bricolage.costs.database import Database
from bricolage.costs.models.learned.installed import model_in_use
from bricolage.costs.models.track_record import extend_shipped
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.driver.session import ModelFindings, Session
from bricolage.driver.sources import Source, measuring_inputs
from bricolage.errors import BadOption
from bricolage.graph.graph import Graph
from bricolage.measure.log import MeasurementLog
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.reference_worker import WorkerReference, reference_limit
from bricolage.measure.selfcheck import self_checked
from bricolage.measure.specs import Limits, TimingPolicy
from bricolage.work.cost import Setting


@dataclass(frozen=True)
class DecisionContext:
    """What the decisions of one command share."""

    options: Options
    backends: tuple[Backend, ...]
    device: Device
    database: Database
    pool: Pool
    progress: Progress
    replan: bool = False
    """Whether decisions on record are made again, and what failed by bad luck is tried again."""
    provisional: bool = False
    """Whether a decision on record that is provisional is taken as it is."""
    findings: ModelFindings | None = None
    """Where several contexts decide on one model."""
    then: tuple[Setting, ...] = ()
    """Where the model is decided on next."""
    reference_pool: Pool | None = None
    """Workers of references, where those that measure are held to a device's memory; None: the same."""

    def reference(self, opened: Source, graph: Graph, log: MeasurementLog | None = None) -> WorkerReference:
        """What computes the references of a graph and its regions: a worker with limits of time and memory."""
        return open_reference(
            opened, graph, self.options, self.device, self.reference_pool or self.pool, log, self.findings
        )

    def session(
        self, opened: Source, graph: Graph, log: MeasurementLog | None = None, budget: DecisionBudget | None = None
    ) -> Session:
        """What one decision for a graph is made with: what computes references, backends that passed their self-check on its
        operators, the limits and rounds of the effort. Nothing that was loaded in the workers before is kept. What happens while
        it measures is written into its `log`, a new one by default; its `budget` is that of the options by default."""
        self.pool.clear()
        log, budget = log or MeasurementLog(), budget or DecisionBudget.of(self.options, len(graph))
        evaluate = self.reference(opened, graph, log)
        evaluate.start()
        checked = self_checked(self.backends, [graph], self.progress, retrying=self.replan)
        measurer = Measurer(
            self.database,
            self.pool,
            opened.store.directory,
            limits=Limits(compile_s=budget.compile_limit_s),
            policy=TimingPolicy(budget.profile.rounds, budget.profile.most_rounds),
            cores=self.device.threads,
            retrying=self.replan,
            log=log,
        )
        costs = model_in_use() if self.options.predict else None
        return Session(
            self.options,
            checked,
            device=self.device,
            measurer=measurer,
            store=opened.store,
            progress=self.progress,
            budget=budget,
            evaluate=evaluate,
            network=opened.digest,
            costs=costs,
            costs_title=costs.title if costs is not None else "",
            findings=self.findings or ModelFindings(),
            then=self.then,
            file=opened.file,
            record=extend_shipped(self.database),
        )

    def inputs(self, opened: Source, graph: Graph, session: Session) -> tuple[dict[str, np.ndarray], str]:
        """What a graph is measured with, and where that comes from."""
        return measuring_inputs(opened, graph, self.options, session.evaluate, session.samples)


def check_again(replan: bool, provisional: bool) -> None:
    """Whether it is clear what becomes of a decision on record.

    Raises:
        BadOption: it is to be made again, and to be taken as it is.
    """
    if replan and provisional:
        advice = "It takes the decision on record, and --replan makes another one. Leave one of them out"
        raise BadOption(option="--provisional", value="with --replan", advice=advice)


@contextmanager
def open_context(
    options: Options,
    backends: tuple[Backend, ...],
    device: Device,
    progress: Progress,
    *,
    database: Path | None = None,
    pool: Pool | None = None,
    replan: bool = False,
    provisional: bool = False,
    findings: ModelFindings | None = None,
    then: tuple[Setting, ...] = (),
    reference_pool: Pool | None = None,
) -> Iterator[DecisionContext]:
    """A context with the user's database of costs, or that at a path; and with workers of its own, or a `pool` that stays open.

    Raises:
        MissingLibrary, UnreachableCluster, NoMeasuringNode: the cluster of the options cannot be used.
    """
    with (
        Database() if database is None else Database(database) as costs,
        nullcontext(pool) if pool is not None else open_pool(options) as workers,
    ):
        yield DecisionContext(
            options,
            backends,
            device=device,
            database=costs,
            pool=workers,
            progress=progress,
            replan=replan,
            provisional=provisional,
            findings=findings,
            then=then,
            reference_pool=reference_pool,
        )


def open_reference(
    opened: Source,
    graph: Graph,
    options: Options,
    device: Device,
    pool: Pool,
    log: MeasurementLog | None = None,
    findings: ModelFindings | None = None,
) -> WorkerReference:
    """As `DecisionContext.reference`, for what only compares and decides nothing."""
    limit_s = reference_limit(graph, DecisionBudget.of(options, len(graph)).whole_s)
    return WorkerReference(pool, device, opened.store.directory, limit_s, log, findings.answers if findings else None)


def open_pool(options: Options) -> Pool:
    """The worker processes of one run, and the nodes of a cluster where one is named.

    Raises:
        MissingLibrary, UnreachableCluster, NoMeasuringNode: the cluster cannot be used.
    """
    limit = options.memory_limit_mb << 20 if options.memory_limit_mb else None
    pool = Pool(limit)
    if options.ray is not None:
        from bricolage.measure.scale_out.ray_nodes import Cluster  # few have one

        with undo_on_failure(pool.close):
            pool.scale_out(Cluster(options.ray, select_device(options.isa, options.cores), limit))
    return pool
