"""What the benchmark of TVM tuned prints."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.tvm_tuned import TunedNetwork, table

NETWORK = TunedNetwork(
    workload="tinybert",
    configuration="tvm f32",
    untuned_ms=4.0,
    tuned_ms=2.0,
    ratio=2.0,
    ratio_ci=(1.9, 2.1),
    reason="",
    tasks=30,
    changed=12,
    trials=400,
    search_s=600.0,
    raced_ms=2.0,
    raced_ci=(1.9, 2.2),
    raced_error=1e-6,
    others_ms={"tvm": 4.0},
    others_ci={"tvm": (3.9, 4.1)},
)


def test_a_backend_that_does_not_run_the_network_has_no_time() -> None:
    lines = table([NETWORK], ["onnxruntime"]).splitlines()
    assert lines[0].endswith("| tuned, raced | error | tvm | onnxruntime |")
    assert lines[2].startswith("| tinybert | 4 | 2 | **2.000** [1.900, 2.100] | 12 of 30 | 400 | 600 |")
    assert lines[2].endswith("| 2 [1.9, 2.2] | 1.0e-06 | 4 [3.9, 4.1] | – |")
    assert lines[-1] == "Geometric mean of the ratios: 2.000"


def test_where_nothing_was_found_there_is_no_tuned_time() -> None:
    usual = replace(NETWORK, tuned_ms=None, ratio=1.0, ratio_ci=(1.0, 1.0), changed=0)
    assert "| 4 | – | **1.000**" in table([usual], []).splitlines()[2]
