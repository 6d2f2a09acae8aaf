"""Steps of a program: region files and who runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.device.tensor_form import NamedShape
from bricolage.work.implementation import Implementation, Placement

if TYPE_CHECKING:
    from bricolage.graph.graph import Graph
    from bricolage.graph.identity import Identities
    from bricolage.graph.store import Store

MODEL_FILE = "model.onnx"
"""Name of the whole model as it came, symbolic dimensions kept."""
USER_FILE = "as-it-comes.onnx"
"""Name of the user's own file among those of a decision or an artifact, where it is kept ..."""
USER_DATA = "as-it-comes-*.data"
"""... and of the files of its weights, where they lie in others."""


@dataclass(frozen=True)
class Step:
    """The region model at `path`, to be compiled by an implementation."""

    implementation: Implementation
    path: Path
    ends: tuple[tuple[NamedShape, ...], tuple[NamedShape, ...]] | None = None
    """Of a user's file: which of its inputs are given, and what the program calls its outputs, in their order, with the shapes of
    this program. None where those of the model at `path` are meant."""


def file_step(graph: Graph, implementation: Implementation, path: Path) -> Step:
    """The user's file that `graph` was prepared from, in its place."""
    given, called = (tuple((info.name, info.shape) for info in ends) for ends in (graph.inputs, graph.outputs))
    return Step(implementation, path, (given, called))


def placement_steps(
    graph: Graph, placement: Placement, store: Store, identities: Identities | None = None
) -> tuple[Step, ...]:
    """The regions of a placement, in its order, as files of the store. `identities` are the graph's, where they are known."""
    if placement and placement[0].implementation.config.as_it_comes:
        return (file_step(graph, placement[0].implementation, store.directory / USER_FILE),)
    from bricolage.graph.graph import Region
    from bricolage.graph.identity import Identities

    graph_identities = identities or Identities(graph)
    regions = [Region(graph, assignment.region) for assignment in placement]
    return tuple(
        Step(assignment.implementation, store.region(region, graph_identities.key(region)))
        for assignment, region in zip(placement, regions, strict=True)
    )
