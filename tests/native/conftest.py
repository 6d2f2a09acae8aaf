"""Instruction sets that the engine's C is generated for."""

from __future__ import annotations

import pytest

from bricolage.backends.native.engine import FORCED_ISA_VARIABLE
from bricolage.native.cpu.isa import Isa, available_isas


@pytest.fixture(params=available_isas(), ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isa:
    """Each that runs here in turn; a test names others by `parametrize("isa", [...], indirect=True)`."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, request.param.name)
    found: Isa = request.param
    return found
