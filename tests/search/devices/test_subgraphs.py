"""Sub-graphs: chains by their definition, and the graph that is left of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.search.devices.subgraphs import chains, contract_regions
from bricolage.work.bits import members, of
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor
from tests.search.schedules.problems import graphs


@given(graph=graphs(12))
@settings(max_examples=100, deadline=None)
def test_chains_cover_a_graph_and_cannot_be_longer(graph: WorkGraph) -> None:
    found = chains(graph)
    assert sorted(number for chain in found for number in members(chain)) == list(range(len(graph)))
    joined = {
        (source, number)
        for number, sources in enumerate(graph.predecessors)
        for source in sources
        if len(sources) == 1 and len(graph.successors[source]) == 1
    }
    together = {
        (source, number)
        for number, sources in enumerate(graph.predecessors)
        for source in sources
        if any(chain >> source & chain >> number & 1 for chain in found)
    }
    assert together == joined
    contract_regions(graph, found, [""] * len(found))  # raises where an edge leads backwards


def test_chains_end_where_regions_do() -> None:
    graph = graph_of([[], [0], [1], [2]])
    assert chains(graph) == (0b1111,)
    assert chains(graph, [0b0011, 0b1100]) == (0b0011, 0b1100)


def test_inputs_and_outputs_are_tasks_and_a_tensor_goes_to_a_region_once() -> None:
    graph = WorkGraph(
        tuple(WorkOperator(str(n)) for n in range(4)),
        (
            WorkTensor("x", GRAPH_INPUT, (0, 3), 100),
            WorkTensor("a", 0, (1, 2), 10),
            WorkTensor("b", 1, (3,), 7),
            WorkTensor("c", 2, (3,), 8),
            WorkTensor("y", 3, (), 5, is_output=True),
        ),
    )
    left = contract_regions(graph, (0b0001, 0b0110, 0b1000), ["one", "two", "three"])
    assert [one.name for one in left.operators] == ["inputs", "one", "two", "three", "outputs"]
    edges = {(t.name, t.producer): (t.consumers, t.bytes) for t in left.tensors}
    assert edges == {
        ("x", 0): ((1, 3), 100), ("a", 1): ((2,), 10), ("b", 2): ((3,), 7), ("c", 2): ((3,), 8), ("y", 3): ((4,), 5),
    }  # fmt: skip
    with pytest.raises(ValueError, match="not covered"):
        contract_regions(graph, (of([0, 1]),), ["one"])
