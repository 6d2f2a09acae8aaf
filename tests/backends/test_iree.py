"""IREE, as far as nothing that it compiled is run."""

from __future__ import annotations

import sys

import pytest

from bricolage.backends import iree
from tests.backends.regions import wait_for_threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows the threads of a process")
def test_each_number_of_threads_has_a_device_of_its_own() -> None:
    """A driver is made with a number of threads, and IREE would give the first one out again."""
    pytest.importorskip("iree.runtime")
    before, cores = wait_for_threads("iree-worker", 0), (-1,)  # cores that no other test of this process has asked for
    devices = [iree._device(threads, True, cores) for threads in (3, 1, 2)]
    assert wait_for_threads("iree-worker", before + 5) == before + 5
    assert len(set(map(id, devices))) == 3 and iree._device(3, True, cores) is devices[0]
    assert iree._device(3, False, cores) is not devices[0]
