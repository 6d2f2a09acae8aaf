"""Plans as layers of the traffic model, and the bytes of their kernels: against what the shapes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.backends.native.region_builder import plan_region_structure
from bricolage.native.fuse.kernel_layers import buffer_levels, kernel_layers
from bricolage.search.layer_groups.group_search import least, partition_cost, unfused
from bricolage.search.layer_groups.group_traffic import TrafficModel
from bricolage.search.layer_groups.layer_network import LayerNetwork
from tests.backends import regions

_LEVELS = buffer_levels(512 << 10, 8)


def _residual(folder: Path) -> RegionModel:
    """Two convolutions with a sum and a pooling behind them, and a gate that the mean of the whole image feeds."""
    return regions.region(
        folder,
        """
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, v)
        d = Add (c, b)
        m = GlobalAveragePool (d)
        e = Mul (d, m)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
        """,
        "float[1, 8, 16, 16] x",
        "float[1, 8, 8, 8] y",
        w=regions.noise(8, 8, 3, 3),
        v=regions.noise(8, 8, 3, 3),
    )


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def _layers(region: RegionModel) -> tuple[LayerNetwork, tuple[int, ...]]:
    _, plan, _, _ = plan_region_structure(region, regions.F32, Resources(threads=1), {})
    return kernel_layers(plan)


def test_layers_are_those_of_the_graph(tmp_path: Path) -> None:
    network, kernels = _layers(_residual(tmp_path))
    weighted = [layer for layer in network.layers if layer.weighted]
    assert [(layer.channels_in, layer.channels, layer.size, layer.window) for layer in weighted] == [(8, 8, 16, 3)] * 2
    assert all(layer.weights == 8 * 8 * 9 for layer in weighted)
    (pooled,) = [layer for layer in network.layers if layer.window == 2]
    assert (pooled.size, pooled.stride, pooled.weighted) == (8, 2, False)
    assert sum(kernels) == (1 << len(network.layers)) - 1 and sum(map(int.bit_count, kernels)) == len(network.layers)


def test_what_a_whole_image_feeds_is_in_no_group_with_it(tmp_path: Path) -> None:
    """The gate needs the mean of all rows, so that its product is not computed a few rows behind it."""
    network, _ = _layers(_residual(tmp_path))
    (mean,) = [number for number, layer in enumerate(network.layers) if layer.size == 1]
    gated = [number for number, layer in enumerate(network.layers) if network.layers[mean].name in layer.reads]
    assert gated and all(network.barred[number] >> mean & 1 for number in gated)


def test_no_plan_of_the_model_is_dearer_than_the_kernels(tmp_path: Path) -> None:
    for region in (_residual(_folder(tmp_path, "residual")), regions.conv_net(_folder(tmp_path, "net"))):
        network, kernels = _layers(region)
        model = TrafficModel(network, _LEVELS)
        ours, best = partition_cost(model, kernels), least(model)
        assert best.proven and best.cost <= ours.cost * (1 + 1e-9)
        assert ours.cost <= unfused(model).cost * (1 + 1e-9)


def test_bytes_are_those_of_shapes(tmp_path: Path) -> None:
    """A product, a ReLU that it keeps, and a second result: by hand."""
    region = regions.region(
        tmp_path,
        "p = MatMul (x, w) \n q = Relu (p) \n y = Softmax <axis = -1> (q)",
        "float[4, 16] x",
        "float[4, 8] y",
        w=regions.noise(16, 8),
    )
    product, softmax = Native().traffic_report(region, regions.F32, Resources(threads=1)).kernels
    assert (product.weights, product.inputs, product.outputs) == (4 * 16 * 8, 4 * 4 * 16, 4 * 4 * 8)
    assert product.kept == 4 * 4 * 8
    assert product.unfused == 4 * (16 * 8 + 4 * 16 + 4 * 8) + 4 * (4 * 8 + 4 * 8)
    assert (softmax.weights, softmax.kept, softmax.unfused) == (0, 0, softmax.moved) == (0, 0, 4 * (4 * 8 + 4 * 8))


def test_traffic_agrees_with_the_kernels_and_names_the_best_groups(tmp_path: Path) -> None:
    region = _residual(tmp_path)
    traffic = Native().traffic_report(region, regions.F32, Resources(threads=1))
    shown = Native().kernel_report(region, regions.F32, Resources(threads=1), timed=False).kernels
    assert [kernel.moved for kernel in traffic.kernels] == [kernel.bytes for kernel in shown]
    assert all(kernel.unfused >= kernel.moved for kernel in traffic.kernels)
    alone, ours, *_, best = traffic.groupings
    assert (alone.groups, ours.groups) == (traffic.layers, len(traffic.kernels))
    assert best.proven and best.ms <= ours.ms <= alone.ms
    assert registry.get("onnxruntime").traffic_report(region, regions.F32, Resources()) is None


@pytest.mark.parametrize("tokens", [1, 48])
def test_a_product_of_tokens_has_a_row_for_each(tokens: int, tmp_path: Path) -> None:
    region = regions.region(
        tmp_path,
        "h = MatMul (x, w) \n r = Relu (h) \n y = MatMul (r, v)",
        f"float[1, {tokens}, 16] x",
        f"float[1, {tokens}, 16] y",
        w=regions.noise(16, 64),
        v=regions.noise(64, 16),
    )
    network, _ = _layers(region)
    assert [(layer.size, layer.width, layer.weights) for layer in network.layers] == [(tokens, 1, 16 * 64)] * 2
    assert not any(layer.barred for layer in network.layers)
