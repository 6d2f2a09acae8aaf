"""The state of a decision for benchmarks that run stages of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.workloads import Workload, export
from bricolage.backends.interface import Backend
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.base.progress import Silent
from bricolage.costs.database import Database
from bricolage.device.host import select_device
from bricolage.driver.context import DecisionContext, open_pool
from bricolage.driver.sources import GivenModel, open_source, working_folder
from bricolage.driver.state import DecisionState
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant


@contextmanager
def state_of(
    workload: Workload, options: Options, backends: Sequence[Backend], database: Database | None = None
) -> Iterator[DecisionState]:
    """Yields a decision for a workload on its example inputs in which nothing is measured yet. Costs go to `database`, by
    default to one that ends with it.

    Raises:
        BricolageError: the workload cannot be opened.
    """
    device, given = select_device(options.isa, options.cores), workload.example_inputs(options.seed)
    with scratch.using(working_folder()) as directory, open_pool(options) as pool:
        opened = open_source(GivenModel(export(workload), inputs=given), options, directory)
        (bucket,) = opened.buckets
        graph = bucket.graph
        with Database(directory / "costs.sqlite") as own:
            costs = own if database is None else database
            context = DecisionContext(options, tuple(backends), device, costs, pool, Silent())
            session = context.session(opened, graph)
            arrays, _ = context.inputs(opened, graph, session)
            yield DecisionState(session, [GraphVariant(ORIGINAL, graph)], arrays, opened.digest)
