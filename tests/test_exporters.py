"""The page about other frameworks' exporters can be followed by a program; `make test-exporters` does."""

from __future__ import annotations

import ast

from tests.exporters import sections


def test_each_section_names_its_packages_and_writes_what_is_compared() -> None:
    found = {section.name: section for section in sections()}
    assert set(found) == {"TensorFlow and Keras", "Paddle"}
    for section in found.values():
        assert section.setup.count("==") >= 2, "versions are pinned"
        ast.parse(section.program)
        assert '"image.npz"' in section.program and '"wanted.npy"' in section.program
