"""What tests of calls share."""

from __future__ import annotations

import pytest

from bricolage.runtime import signature


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time that arguments are checked."""
    calls: list[object] = []
    collect = signature.collect

    def counted(*given: object) -> object:
        calls.append(given)
        return collect(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(signature, "collect", counted)
    return calls
