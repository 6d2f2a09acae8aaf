from __future__ import annotations

from bricolage.work.implementation import Endpoint
from bricolage.work.transfer import NoTransferCosts


def test_free_transfers_are_free() -> None:
    assert NoTransferCosts()(Endpoint("a"), Endpoint("b"), 1 << 30).ms == 0.0
    assert NoTransferCosts() == NoTransferCosts()
