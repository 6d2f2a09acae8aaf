"""What `bisect` and `reduce` share: a model or an artifact opened, with a prober, the programs in question and their oracles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.device.host import select_device
from bricolage.driver.context import open_pool, open_reference
from bricolage.driver.sources import GivenModel, PreparedBucket, Source, measuring_inputs, open_source, working_folder
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Graph
from bricolage.graph.store import Store
from bricolage.measure.pool import Pool
from bricolage.measure.selfcheck import self_checked
from bricolage.measure.specs import Limits
from bricolage.plan import artifact
from bricolage.plan.plan import Plan
from bricolage.trust.changes import Subject
from bricolage.trust.probe import Prober
from bricolage.trust.subjects import of_backends, plan_subject
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import Evaluate

TRIAL_S = 60.0
"""Longest time to compile a program, and to run it."""


@dataclass
class Workplace:
    """A model with what programs of it are tried with."""

    opened: Source
    options: Options
    plan: tuple[Plan, Path] | None
    """Of an artifact, with the folder that it was unpacked to."""
    pool: Pool
    prober: Prober
    resources: Resources
    progress: Progress
    unclaimed: bool
    _inputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The files."""
        return self.opened.store

    def oracle(self, graph: Graph) -> Oracle:
        """The oracle of a graph of the bucket that is looked at."""
        literal = self.options.tolerance is not None
        return Oracle(
            graph,
            self._inputs,
            self.store,
            self.options.bound,
            self.opened.digest,
            literal=literal,
            evaluate=self._reference(graph),
        )

    def _reference(self, graph: Graph) -> Evaluate:
        return open_reference(self.opened, graph, self.options, self.resources.device, self.pool)

    def subjects(self) -> Iterator[tuple[Mapping[str, int], Subject, Oracle]]:
        """The programs in question: sizes of the symbolic dimensions, the program, and the oracle of the graph as it came."""
        for bucket in self.opened.buckets:
            self._inputs, _ = measuring_inputs(self.opened, bucket.graph, self.options, self._reference(bucket.graph))
            self.progress.start("float64 reference")
            oracle = self.oracle(bucket.graph)
            oracle.compute()
            self.progress.finish()
            for subject in self._of_bucket(bucket):
                yield bucket.sizes, subject, oracle

    def _of_bucket(self, prepared: PreparedBucket) -> Iterator[Subject]:
        if self.plan is not None:
            decided, folder = self.plan
            for bucket in decided.buckets:
                if dict(bucket.program.sizes) == dict(prepared.sizes):
                    shipped = graph_of(folder / bucket.program.graph)
                    self.store.share([shipped.model], f"weights-shipped-{bucket.program.graph}.data")
                    yield plan_subject(bucket, prepared.graph, shipped)
            return
        backends = registry.available(self.options.backends)
        if self.options.backends is None:
            backends = tuple(backend for backend in backends if not backend.compiles_slowly)
        if not self.unclaimed:
            backends = self_checked(backends, [prepared.graph], self.progress)
        device, unclaimed = self.resources.device, self.unclaimed
        yield from of_backends(prepared.graph, backends, self.options, device, unclaimed=unclaimed)


@contextmanager
def open_workplace(
    model: GivenModel, options: Options, progress: Progress, *, unclaimed: bool, trial_s: float
) -> Iterator[Workplace]:
    """The workplace for a model or an artifact; its files are gone afterwards. Arguments and errors as for `bisect`."""
    source, plan = model.source, None
    if artifact.is_named(source):
        plans, unpacked = artifact.plans(Path(source))
        plan = next(iter(plans.values())), unpacked  # of a pack the first one, as `bench` takes it
    device = select_device(options.isa, options.cores)
    with scratch.using(working_folder()) as directory:
        opened = open_source(model, options, directory)
        with open_pool(options) as pool:
            prober = Prober(pool, directory, options.threads, device, Limits(trial_s, trial_s))
            resources = Resources(options.threads, device)
            yield Workplace(
                opened,
                options,
                plan=plan,
                pool=pool,
                prober=prober,
                resources=resources,
                progress=progress,
                unclaimed=unclaimed,
            )
