"""The benchmark of `bricolage serve`: its bodies are what the server reads, its figures what the times say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.needed import needs
from tests.runtime.inference_protocol.conftest import LIBRARIES

for library_name in LIBRARIES:
    needs(library_name)

from benchmarks import served  # noqa: E402
from bricolage.plan.plan import TensorSpec  # noqa: E402
from bricolage.runtime.inference_protocol.http_messages import decode_request  # noqa: E402
from bricolage.runtime.inference_protocol.infer_request import ModelSignature  # noqa: E402


@pytest.mark.parametrize("body", [served.binary_body, served.json_body])
def test_bodies_hold_the_tensor(body: object) -> None:
    image = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
    signature = ModelSignature("m", (TensorSpec("image", "float32", (1, 3, 4)),), (), (TensorSpec("y", "float32", ()),))
    data, headers = body("image", image)  # type: ignore[operator]
    request = decode_request(data, headers.get(served._LENGTH), signature)
    np.testing.assert_array_equal(request.arrays["image"], image)
    assert request.outputs == {"y": served._LENGTH in headers}


def test_overhead_is_the_median_of_differences() -> None:
    row = served._summarise("binary", [2.0, 3.0, 4.0], [1.0, 1.0, 3.0])
    assert (row.request_ms, row.over_ms) == (3.0, 1.0) and row.interval_ms[0] <= 1.0 <= row.interval_ms[1] <= 2.0


def test_an_answer_of_other_numbers_ends_the_benchmark() -> None:
    expected = np.array([1.5, 2.5], np.float32)
    served._check_answer("binary", b"{}" + expected.tobytes(), expected)
    served._check_answer("JSON", b'{"outputs": [{"data": [1.5, 2.5]}]}', expected)
    with pytest.raises(RuntimeError, match="answers something else"):
        served._check_answer("JSON", b'{"outputs": [{"data": [1.5, 2.25]}]}', expected)


def test_requests_that_fail_and_hang_up_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_WARM_REQUESTS", 100)
    row = served.measure_growth(tmp_path, 200)
    assert row.requests == 200 and row.files_after <= row.files_before + 1
    assert row.resident_mb_after < row.resident_mb_before + 30
