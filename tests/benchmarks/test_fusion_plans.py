"""One small network under every plan."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fusion.dnnfusion import blocks, partition
from benchmarks.fusion.fusion_plans import compare, table
from tests.benchmarks.test_dnnfusion import W, graph


def test_a_partition_has_as_many_blocks_as_are_counted() -> None:
    found = graph("float[8,8] x", "float[8,8] y", "a = Relu(x) b = MatMul(a, w) c = Relu(b) y = MatMul(c, w)", w=W)
    assert len(set(partition(found, yellow=True))) == blocks(found, yellow=True) == 2
    assert len(partition(found, yellow=True)) == 4


@pytest.mark.filterwarnings("ignore")
def test_every_plan_of_a_network_is_run_and_the_search_is_no_dearer() -> None:
    pytest.importorskip("torch", reason="networks are exported by PyTorch")
    rows = compare("dcgan", rounds=1, threads=1)
    alone, grown, rules, searched = rows
    assert alone.kernels > grown.kernels >= rules.kernels
    assert alone.mb > rules.mb and searched.model_ms <= rules.model_ms
    assert all(row.ms is not None and row.ms > 0 for row in rows) and rules.ratio == 1
    assert table(rows).count("dcgan") == 4
    assert not np.isnan([row.model_ms for row in rows]).any()
