"""Changes of a cluster and of its jobs, from words."""

from __future__ import annotations

import pytest

from bricolage import errors
from bricolage.cluster.what_if import change_weight, with_quota
from tests.cluster.making import job, one_kind


def test_quotas_and_weights_are_those_of_the_history() -> None:
    jobs = [job(number, 0.0, 10.0, queue="xy"[number % 2]) for number in range(4)]
    spec = with_quota(with_quota(one_kind(2), "x=1", jobs), "x=2", jobs)
    assert [(one.queue, one.devices) for one in spec.quota] == [("x", 2)]
    assert with_quota(spec, "x=none", jobs) == one_kind(2)
    assert [one.weight for one in change_weight(jobs, "x=3")] == [3.0, 1.0, 3.0, 1.0]
    assert [one.weight for one in change_weight(jobs, "u1=0.5")] == [1.0, 0.5, 1.0, 1.0]
    for word in ("x", "z=1", "x=0", "x=many", "=1"):
        with pytest.raises(errors.BadOption, match="Write QUEUE=N|Name a queue of the history: x, y"):
            with_quota(spec, word, jobs)
    for word in ("x=-1", "x=many", "z=1"):
        with pytest.raises(
            errors.BadOption, match="Write QUEUE=W|Name a queue or user of the history: u0, u1, u2, x, y"
        ):
            change_weight(jobs, word)
