"""A cache of the tests' own, the planted backends, and a working folder with a prober."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bricolage.backends.interface import Resources
from bricolage.base.progress import Silent
from bricolage.device.host import host
from bricolage.graph.graph import Graph
from bricolage.graph.store import Store
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Limits
from bricolage.trust.bisect import Diagnosis, bisect_changes
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.changes import Subject
from bricolage.trust.probe import Prober
from bricolage.verify.inputs import choose_sample
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import LIBRARY_VARIABLE
from tests.trust import planted

Look = Callable[..., Diagnosis]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(LIBRARY_VARIABLE, "onnx")  # workers start sooner
    planted.register_all()
    yield tmp_path / "cache"
    planted.forget_all()


def oracle_of(graph: Graph, store: Store, bound: float = 1e-5) -> Oracle:
    return Oracle(graph, choose_sample(graph.model).inputs, store, bound, "model")


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Look]:
    """Bisects a subject."""
    store = Store(tmp_path)
    with Pool(memory_limit=2 << 30) as pool:

        def run(subject: Subject, limit_s: float = 60.0) -> Diagnosis:
            prober = Prober(pool, tmp_path, 1, host(), Limits(limit_s, limit_s))
            store.share([subject.graph.model])
            files = oracle_of(subject.graph, store).files(subject.graph.everything)
            return bisect_changes(SubjectProgram(subject, store, Resources(1)), prober, files, Silent())

        yield run
