"""IREE, as far as nothing that it compiled is run."""

from __future__ import annotations

import os

import pytest

from bricolage.backends import iree
from bricolage.errors import Refused


def test_another_number_of_threads_than_the_process_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its executor is made once: it would go on with the first number without a word."""
    pytest.importorskip("iree.runtime")
    monkeypatch.setitem(iree._threads_here, os.getpid(), 3)
    with pytest.raises(Refused, match="its threads in this process are 3, and 5 were asked for"):
        iree._device(5, True)
