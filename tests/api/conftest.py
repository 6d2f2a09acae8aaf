"""Models of these tests are small: the reference needs no torch."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def reference(light_reference: None) -> None:
    """That of the whole package. With torch it decides in `tests/cli/test_optimize.py`."""
