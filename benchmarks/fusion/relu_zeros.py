"""What skipping the products whose results ReLU sets to zero could save at most: `python -m benchmarks.fusion.relu_zeros [NAME …]`.

For each trained network (`benchmarks.real`, those whose packages can be had): of the products in convolutions that nothing but
a ReLU reads, weighted by their work,

* `zeros`: the share whose result the ReLU sets to zero: what an oracle would skip; * `blocks`: the share in blocks of 16
channels at one position that are zero altogether: what a kernel of 16 lanes could skip, given the oracle; * `decided`: the
share that is certainly zero after half of the input channels, by the Cauchy-Schwarz bound on the rest: what an exact test that
costs less than the other half could skip, and `decided_blocks` the same in blocks of 16.

Half of the work is done by then, so half of `decided_blocks` is the most that is saved, before the test itself is paid for.
Nothing is timed: the shares are the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from benchmarks.real.catalogue import NETWORKS, Unavailable
from bricolage.frontends import to_model
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.prepare import prepare
from bricolage.rewrite.analyses.linear import Window, window
from bricolage.verify.reference import Evaluator

_LANES = 16
_DEFAULT = ("opennsfw", "centerface", "ocr-det")


@dataclass(frozen=True)
class Row:
    """One network: convolutions with a ReLU behind them, their share of all products in convolutions, and the shares above."""

    network: str
    convolutions: int
    of_work: float
    zeros: float
    blocks: float
    decided: float
    decided_blocks: float


def measure(name: str, path: Path, inputs: Mapping[str, np.ndarray]) -> Row:
    """Shares of one network on one input."""
    sizes = {}
    model = to_model(path)
    for value in model.graph.inputs:
        if value.shape is not None and value.name is not None and value.name in inputs:
            sizes.update(
                {
                    str(d.value): n
                    for d, n in zip(value.shape, inputs[value.name].shape, strict=True)
                    if isinstance(d, ir.SymbolicDim) and d.value is not None
                }
            )
    graph = prepare(model, sizes)
    nodes = [one.node for one in graph.operators if one.op_type == "Conv"]
    behind = [node for node in nodes if _relu_behind(node) and _plain(node)]
    keep = {value.name or "" for node in behind for value in (node.inputs[0], node.outputs[0]) if value is not None}
    found = Evaluator(graph.model, dtype=np.float32, keep=keep)(dict(inputs))
    held = {**inputs, **found}
    totals = np.zeros(5)
    every = float(sum(_work(node) for node in nodes))
    for node in behind:
        source, kernel = node.inputs[0], node.inputs[1]
        assert source is not None and kernel is not None
        weight, given = constant_elements(kernel), np.asarray(held[source.name or ""])
        assert weight is not None
        own, output = window(node, kernel), np.asarray(found[node.outputs[0].name or ""])
        half = max(1, weight.shape[1] // 2)
        bias = constant_elements(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
        first = _convolved(own, given[:, :half], weight[:, :half], bias)
        rest = np.asarray(given[:, half:], np.float64)
        if rest.size:
            ones = np.ones((1, rest.shape[1], *weight.shape[2:]))
            lengths = np.sqrt(np.maximum(_convolved(own, rest**2, ones), 0.0))
            norms = np.sqrt((np.asarray(weight[:, half:], np.float64) ** 2).sum(axis=(1, 2, 3)))
            first = first + lengths * norms[None, :, None, None]
        zero, decided = output <= 0.0, first <= 0.0
        work = _work(node)
        totals += work * np.array([1.0, zero.mean(), _blocks(zero), decided.mean(), _blocks(decided)])
    shares = totals[1:] / max(totals[0], 1.0)
    return Row(name, len(behind), totals[0] / max(every, 1.0), *map(float, shares))


def _convolved(own: Window, data: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    import torch

    pads = [p for pair in zip(own.before[::-1], own.after[::-1], strict=True) for p in pair]
    padded = torch.nn.functional.pad(torch.from_numpy(np.array(data, np.float64)), pads)
    kernel = torch.from_numpy(np.array(weight, np.float64))
    added = None if bias is None else torch.from_numpy(np.array(bias, np.float64))
    made = torch.nn.functional.conv2d(padded, kernel, added, stride=own.strides, dilation=own.dilations)
    return np.asarray(made)


def _relu_behind(node: ir.Node) -> bool:
    readers = [use.node for use in node.outputs[0].uses()]
    return len(readers) == 1 and readers[0].op_type == "Relu" and not node.outputs[0].is_graph_output()


def _plain(node: ir.Node) -> bool:
    """Whether it is a convolution of images without groups, with constant weights."""
    kernel, group = node.inputs[1], node.attributes.get("group")
    weight = constant_elements(kernel) if kernel is not None else None
    return weight is not None and weight.ndim == 4 and (group is None or group.as_int() == 1)


def _work(node: ir.Node) -> int:
    shape, kernel = node.outputs[0].shape, node.inputs[1]
    assert shape is not None and kernel is not None and kernel.shape is not None
    return int(np.prod(shape.numpy())) * int(np.prod(kernel.shape.numpy()[1:]))


def _blocks(mask: np.ndarray) -> float:
    """The share of blocks of 16 channels at a position in which all is true; the last block overlaps the one before."""
    channels = mask.shape[1]
    lanes = min(_LANES, channels)
    starts = [*range(0, channels - lanes + 1, lanes), *([channels - lanes] if channels % lanes else [])]
    return float(np.mean([mask[:, start : start + lanes].all(axis=1).mean() for start in starts]))


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=_DEFAULT, metavar="NAME", help="networks of benchmarks.real")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    known_networks = {one.name: one for one in NETWORKS}
    if not given.json:
        print("| network | convolutions | of the work | zeros | blocks | decided | decided blocks |")
        print("|---|---:|---:|---:|---:|---:|---:|")
    for name in given.names:
        network = known_networks[name]
        try:
            path = network.path()
        except Unavailable as reason:
            print(f"{name}: {reason}", file=sys.stderr)
            continue
        row = measure(name, path, network.inputs(0))
        if given.json:
            print(json.dumps(asdict(row)))
        else:
            cells = [f"{share:.1%}" for share in list(asdict(row).values())[2:]]
            print(f"| {' | '.join([row.network, str(row.convolutions), *cells])} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
