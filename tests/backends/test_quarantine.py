"""What is in quarantine is not claimed, on the versions and for the operators that an entry names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bricolage.backends import quarantine, registry
from bricolage.backends.capabilities import explain_quarantine
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.quarantine import QuarantineEntry, entries
from bricolage.base.codec import DecodeError
from bricolage.errors import BricolageError
from bricolage.graph.graph import Graph
from tests.graph.models import graph

BUGS = Path(__file__).parents[2] / "docs" / "reference" / "backend-bugs.md"
ENTRY = {
    "backend": "onnxruntime",
    "first": "1.0",
    "operator": "LeakyRelu",
    "what": "it answers something else",
    "evidence": "LeakyRelu behind Conv",
}
Plant = Callable[..., None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Puts one entry into quarantine."""

    def planted(**changed: Any) -> None:
        (tmp_path / "quarantine.json").write_text(json.dumps([{**ENTRY, **changed}]), encoding="utf-8")
        monkeypatch.setattr(quarantine, "FILE", tmp_path / "quarantine.json")
        entries.cache_clear()

    yield planted
    monkeypatch.undo()
    entries.cache_clear()


def claimed(network: Graph) -> set[str]:
    """Types of operators that ONNX Runtime may be given."""
    accepted = Matcher(network).accepted(registry.get("onnxruntime").claims())
    return {operator.op_type for operator in network.operators if accepted >> operator.number & 1}


@pytest.fixture
def network() -> Graph:
    return graph("a = Relu (x) b = LeakyRelu <alpha = 0.25> (a) y = Tanh (b)")


def test_a_whole_graph_with_such_an_operator_is_not_even_tried(plant: Plant, network: Graph) -> None:
    backend = registry.get("onnxruntime")
    assert explain_quarantine(backend, network) is None
    plant()
    assert "in quarantine" in (explain_quarantine(backend, network) or "")


def test_without_an_entry_everything_is_claimed(network: Graph) -> None:
    assert claimed(network) == {"Relu", "LeakyRelu", "Tanh"}


def test_an_entry_is_respected_and_says_why(network: Graph, plant: Plant) -> None:
    plant()
    assert claimed(network) == {"Relu", "Tanh"}
    (claim, *_) = registry.get("onnxruntime").claims()
    reason = claim.constraint(network, tuple(o for o in network.operators if o.op_type == "LeakyRelu"))
    assert reason is not None and "quarantine" in reason and "LeakyRelu behind Conv" in reason


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"backend": "openvino"},
        {"last": "1.2"},
        {"first": "999"},
        {"operator": "Elu"},
        {"types": "float16"},
        {"where": ["rank=3"]},
        {"reads": ["Conv"]},
        {"read_by": ["Relu"]},
        {"reads": ["Relu"], "read_by": ["Conv"]},
    ],
    ids=str,
)
def test_it_holds_for_what_it_names_alone(elsewhere: dict[str, Any], network: Graph, plant: Plant) -> None:
    plant(**elsewhere)
    assert "LeakyRelu" in claimed(network)


@pytest.mark.parametrize(
    "here",
    [{"last": "999"}, {"types": "float32"}, {"where": ["rank=1"]}, {"reads": ["Conv", "Relu"]}, {"read_by": ["Tanh"]}],
    ids=str,
)
def test_it_holds_where_all_that_it_names_is_there(here: dict[str, Any], network: Graph, plant: Plant) -> None:
    plant(**here)
    assert "LeakyRelu" not in claimed(network)


def test_bodies_are_looked_into(plant: Plant) -> None:
    body = "then () => (float[4] t) { t = LeakyRelu (x) }"
    other = "otherwise () => (float[4] e) { e = Relu (x) }"
    network = graph(f"y = If (c) <then_branch = {body}, else_branch = {other}>", "float[4] x, bool c")
    assert claimed(network) == {"If"}
    plant()
    assert claimed(network) == set()


def test_versions_are_compared_as_numbers() -> None:
    entry = QuarantineEntry(**{**ENTRY, "first": "1.9", "last": "1.31.1"})
    assert entry.holds_for("onnxruntime", "1.31.1") and entry.holds_for("onnxruntime", "1.10.0+cpu")
    assert not entry.holds_for("onnxruntime", "1.8.9") and not entry.holds_for("onnxruntime", "1.32.0")


def test_a_damaged_entry_is_named(plant: Plant) -> None:
    plant(colour="red")
    with pytest.raises((DecodeError, BricolageError), match="colour"):
        entries("onnxruntime", "1.31.1")


def test_every_entry_has_its_paragraph_with_a_script() -> None:
    found = re.search(r"^## Backends\n.*?(?=^## |\Z)", BUGS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    paragraphs = re.split(r"^### ", found.group(), flags=re.MULTILINE)[1:]
    headings = {text.splitlines()[0]: text for text in paragraphs}
    known = [QuarantineEntry(**one) for one in json.loads(quarantine.FILE.read_text(encoding="utf-8"))]
    assert {entry.evidence for entry in known} <= set(headings)
    assert all("import " in text for text in headings.values())
