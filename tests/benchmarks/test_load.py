"""Neighbours start, are what they are said to be, and are gone afterwards."""

import os
from pathlib import Path

import pytest

from benchmarks.tools.load import KINDS, busy

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def _ticks(pid: int) -> int:
    """Processor time of a process, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@linux
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_compute_at_their_niceness_and_are_gone_afterwards(kind: str) -> None:
    expected = {"quiet": 0, "memory": 1, "bursty": 1}.get(kind, int(kind[0]) if kind[0].isdigit() else -1)
    niceness = 19 if kind.endswith("nice19") else 0
    if os.nice(0) > niceness and os.geteuid() != 0:
        pytest.skip("only root may start a process that is less nice than this one")
    with busy(kind) as pids:
        assert len(pids) == expected
        assert all(os.getpriority(os.PRIO_PROCESS, pid) == niceness for pid in pids)
        begun = [_ticks(pid) for pid in pids]
        for pid, before in zip(pids, begun, strict=True):
            while _ticks(pid) == before:  # ends as soon as it has computed for a tick
                os.sched_yield()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no load 'noisy'; there are: quiet"), busy("noisy"):
        pass
