"""What tests of exported libraries share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bricolage.native.cpu import toolchain


@pytest.fixture(scope="module", autouse=True)
def product_optimisation() -> Iterator[None]:
    """Python's side is compiled as the product compiles it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(toolchain.LEVEL_VARIABLE, raising=False)
        yield
