"""Placements without measuring."""

from __future__ import annotations

import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.device.host import host
from bricolage.driver.heuristic_placement import place_by_preference, usable_backends
from bricolage.errors import Unclaimed
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from tests.graph.models import parse

TWO = [registry.get(name) for name in ("native", "onnxruntime")]
pytestmark = pytest.mark.skipif(
    not all(isinstance(backend.status(), Available) for backend in TWO), reason="a backend is missing"
)


def chain() -> Graph:
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[2, 3] x) => (float[2, 3] y)
        { a = Relu (x) b = Tanh (a) c = Exp (b) y = Neg (c) }"""
    return prepare(parse(text), {})


def test_the_first_that_claims_all_takes_all() -> None:
    graph = chain()
    for order in (TWO, TWO[::-1]):
        (one,) = place_by_preference(graph, order, host(), {})
        assert (one.region, one.implementation.backend) == (graph.everything.bits, order[0].name)


def test_a_part_that_failed_goes_to_another_in_as_few_regions_as_can_be() -> None:
    graph = chain()
    placed = place_by_preference(graph, TWO, host(), {"native": 0b0011})
    assert [one.implementation.backend for one in placed] == ["onnxruntime"]
    placed = place_by_preference(graph, TWO, host(), {"native": 0b0011, "onnxruntime": 0b1000})
    assert [(one.region, one.implementation.backend) for one in placed] in (
        [(0b0011, "onnxruntime"), (0b1100, "native")],
        [(0b0111, "onnxruntime"), (0b1000, "native")],
    )


def test_what_nobody_takes_is_named_with_the_reasons() -> None:
    with pytest.raises(Unclaimed, match=r"\(Tanh\): native: it has failed here; onnxruntime: it has failed here"):
        place_by_preference(chain(), TWO, host(), {"native": 0b0010, "onnxruntime": 0b0010})


def test_slow_compilers_come_last() -> None:
    names = [backend.name for backend in usable_backends([registry.get("tvm"), *TWO, registry.get("xla")])]
    assert names == ["native", "onnxruntime", "tvm", "xla"]
