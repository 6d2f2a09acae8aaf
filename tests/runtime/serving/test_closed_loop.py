"""Requests in a closed loop: as many under way as asked for, and an error that ends it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.api.serve import serve
from bricolage.plan.operating_point import OperatingPoint
from tests.runtime.serving.conftest import executable, sample
from tests.runtime.serving.test_batching import TABLE

pytestmark = pytest.mark.usefixtures("backends")


def test_all_requests_are_answered_and_no_more_are_under_way_than_asked_for(tmp_path: Path) -> None:
    with executable(tmp_path, "quick", (1, 8)) as fast:
        served = serve(fast, {"x": sample()}, 40, 3, OperatingPoint(batch=8, max_delay_ms=1.0))
        assert (served.statistics.done, served.statistics.rows) == (40, 40)
        assert served.statistics.batches >= 40 / 3, "no batch has more rows than there are requests at a time"
        assert served.requests_per_s == pytest.approx(40 / served.seconds)


def test_an_error_ends_it(tmp_path: Path) -> None:
    with executable(tmp_path, "onnxruntime", (1,), TABLE) as fast, pytest.raises(Exception, match="lies outside of"):
        serve(fast, {"x": np.full((1, 4), 77, np.float32)}, 1000, 4)
