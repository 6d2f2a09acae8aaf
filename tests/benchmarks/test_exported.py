"""The benchmark of exported models: what it says of answers, and a run of it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.exported.__main__ import Row, describe_answer, format_table
from tests.export.exported import need


def test_answers_are_compared_bit_for_bit() -> None:
    expected = np.float32([1, 2, -0.0])
    assert describe_answer(expected.tobytes(), expected.tobytes()) == "every bit"
    assert describe_answer(np.float32([1, 2, 0.0]).tobytes(), expected.tobytes()) == "0.0e+00"
    assert describe_answer(np.float32([1, 2.1, 0]).tobytes(), expected.tobytes()) == "4.5e-02"
    assert describe_answer(expected[:2].tobytes(), expected.tobytes()) == "another size"


def test_a_table_has_what_failed() -> None:
    rows = [Row("a", "exported", 1, 2, 3, 4, 5, python=(1, 0.9, 1.1), answer="every bit"), Row("b", "c", failed="no")]
    first, second = format_table(rows).splitlines()[2:]
    assert first == "| a | exported | 1.0 | 2.0 | 3 | 1.000 [0.900, 1.100] | 4.0 | 5.00 | every bit |"
    assert second.startswith("| b | c |") and second.endswith("| no |")


@pytest.mark.slow
def test_an_addition_leaves_python() -> None:
    need("cmake", "cc", "strip")
    command = [
        sys.executable,
        "-m",
        "benchmarks.exported",
        "--workload",
        "addition",
        "--starts=2",
        "--rounds=3",
        "--json",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = {row["contestant"]: row for row in json.loads(ran.stdout)}
    assert rows["exported"]["answer"] == "every bit" and rows["exported"]["allocations"] == 0
    assert rows["exported"]["code_mb"] < 1 and 0 < rows["exported"]["start_ms"] < rows["python"]["start_ms"]
