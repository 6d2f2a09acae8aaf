"""What threads idle at the ends of loops, by hand."""

from benchmarks.fusion.granularity import idle
from bricolage.native.cpu.sharing import ParallelRange


def test_idle_time_is_that_of_the_last_piece() -> None:
    loop = ParallelRange(count=5, work=10)
    assert idle(loop, 1, 2) == 50.0, "one thread does all five, and the other could have"
    assert idle(loop, 5, 2) == 10.0, "three against two"
    assert idle(ParallelRange(count=4, work=10), 4, 2) == 0.0
