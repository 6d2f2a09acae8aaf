"""The example in docs/manual/backends.md, run as it stands there, on a backend that is right and on one that is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bricolage.backends import registry
from tests.testing.liar import Liar

PAGE = Path(__file__).parents[2] / "docs" / "manual" / "backends.md"


def example(**changed: str) -> Callable[[], None]:
    """The test that the page defines, with parts of its text changed."""
    found = re.search(
        r"^```py\n(from hypothesis import.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert found is not None
    text = found[1].strip()
    assert len([line for line in text.splitlines() if line.strip()]) <= 14
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    names: dict[str, Callable[[], None]] = {}
    exec(text, names)
    return names["test_what_it_takes_it_gets_right"]


def test_a_right_backend_passes() -> None:
    example(blas="onnxruntime", **{"max_examples=100": "max_examples=4, derandomize=True, database=None"})()


def test_a_wrong_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "get", lambda name: Liar() if name == "liar" else ONNXRUNTIME)
    found = "phases=[__import__('hypothesis').Phase.generate], database=None, derandomize=True, max_examples=40"
    test = example(blas="liar", **{"max_examples=100": found, 'kinds=("basic", "wide")': 'steps=("unary",)'})
    with pytest.raises(AssertionError):
        test()


ONNXRUNTIME = registry.get("onnxruntime")
