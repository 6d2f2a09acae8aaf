"""Processes that meet by gloo: where one of them hangs, the one is named, and not those that wait for it."""

from __future__ import annotations

import pytest

from bricolage.base.codec import encode
from bricolage.errors import TrainingWorkerFailed
from bricolage.train.run.process_group import open_group, run_group
from bricolage.train.run.rank import ENTRY

pytest.importorskip("torch")

from tests.train.ranks import Number, add, hang


def test_they_meet_and_add() -> None:
    assert run_group(add, [Number(rank) for rank in range(4)], Number, 1, 60.0) == [Number(6)] * 4


@pytest.mark.parametrize(("patience_s", "limit_s"), [(60.0, 2.0), (2.0, 60.0)])
def test_the_one_that_hangs_is_named(patience_s: float, limit_s: float) -> None:
    facts = {"kind": f"{Number.__module__}:Number", "job": encode(Number(0))}
    with open_group(ENTRY, 2, 1) as group:
        group.join(patience_s)
        group.ask("work", 60.0, work=f"{add.__module__}:{add.__name__}", folder=str(group.folder), **facts)
        with pytest.raises(TrainingWorkerFailed) as error:
            group.ask("work", limit_s, work=f"{hang.__module__}:{hang.__name__}", folder=str(group.folder), **facts)
    reason = str(error.value.facts["reason"])
    assert "process 1 of 2 is in hang" in reason and "process 0 of 2 is in" not in reason, reason
    assert ("no answer to 'work'" in reason) == (limit_s < patience_s), reason
