"""Kernels of the networks that DNNFusion counted, here and there: `python -m benchmarks.fusion.fusion_rate`.

    python -m benchmarks.fusion.fusion_rate --json
    python -m benchmarks.fusion.fusion_rate --network vgg16,gpt2 --without-inductor

The paper's figures are those of table 5 of Niu et al. (PLDI 2021): layers before fusion, and after it by DNNFusion, TVM, TFLite,
MNN and PyTorch Mobile. `operators` are those of our graph with constants folded; today's exporters write a normalisation or a
batch norm as one operator where those of 2020 wrote several. So neither measure compares planners alone: the rate, the table's own,
is what there was before for each kernel after, and does not count for us what the exporter has already joined; kernels alone count
it for us. `peers` are counted here as `benchmarks.fusion.fusion` says. Two networks are not of the paper's size: `unet` is half as
wide as its authors', and `proposals` is the part of a Faster R-CNN before boxes are chosen; the paper counts the whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.fusion.fusion import count


@dataclass(frozen=True)
class Published:
    """A row of the paper's table: layers, and after fusion; None where a tool cannot run it."""

    name: str
    layers: int
    dnnfusion: int
    tvm: int | None = None
    tflite: int | None = None
    mnn: int | None = None
    pytorch: int | None = None


_PAPER_PEERS = ("tvm", "tflite", "mnn", "pytorch")
PUBLISHED: Mapping[str, Published] = {
    "efficientnet-b0": Published("EfficientNet-B0", 309, 97, 195, 201, 199, 210),
    "vgg16": Published("VGG-16", 51, 17, 22, 22, 22, 22),
    "mobilenet-ssd": Published("MobileNetV1-SSD", 202, 71, 124, 138, 138, 148),
    "yolo-v4": Published("YOLO-V4", 398, 135, 192, 198, 198, 232),
    "c3d": Published("C3D", 27, 16, 27, None, 27, 27),
    "s3d": Published("S3D", 272, 98, pytorch=272),
    "unet": Published("U-Net", 292, 82, 232, 234, 241),
    "proposals": Published("Faster R-CNN", 3640, 942),
    "tinybert": Published("TinyBERT", 366, 74, 304, 322),
    "distilbert": Published("DistilBERT", 457, 109, 416, 431),
    "albert": Published("ALBERT", 936, 225, 746, 855),
    "bert-base": Published("BERT-base", 976, 216, 760, 873),
    "mobilebert": Published("MobileBERT", 2387, 510, 1678, 2128),
    "gpt2": Published("GPT-2", 2533, 254, 2047, 2223),
}


@dataclass(frozen=True)
class Row:
    """One network."""

    network: str
    native: int
    paper: int
    operators: int
    layers: int
    rate: float
    """Operators of our graph for each kernel."""
    paper_rate: float
    peers: dict[str, int]
    """Counted here."""
    paper_peers: dict[str, int]


def row(network: str, inductor: bool) -> Row:
    """Counts one network with every tool that is installed."""
    found, theirs = count(network, inductor), PUBLISHED[network]
    counted = {"onnxruntime": found.onnxruntime, "openvino": found.openvino, "inductor": found.inductor}
    peers = {name: kernels for name, kernels in counted.items() if kernels is not None}
    return Row(
        network,
        found.native,
        theirs.dnnfusion,
        found.operators,
        theirs.layers,
        found.operators / found.native,
        theirs.layers / theirs.dnnfusion,
        peers,
        {name: kernels for name in _PAPER_PEERS if (kernels := getattr(theirs, name)) is not None},
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| network | operators | native | rate | layers, paper | DNNFusion, paper | rate, paper | ONNX Runtime | OpenVINO "
        "| Inductor |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for counted in rows:
        peers = " | ".join(str(counted.peers.get(name, "")) for name in ("onnxruntime", "openvino", "inductor"))
        ours = f"{counted.operators} | {counted.native} | {counted.rate:.2f}"
        paper = f"{counted.layers} | {counted.paper} | {counted.paper_rate:.2f}"
        lines.append(f"| {counted.network} | {ours} | {paper} | {peers} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default=",".join(PUBLISHED), help="names, with commas between")
    parser.add_argument("--without-inductor", action="store_true", help="it takes a minute or more for a large network")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    names = given.network.split(",")
    unknown = [name for name in names if name not in PUBLISHED]
    if unknown:
        parser.error(f"no such network: {', '.join(unknown)}. There are {', '.join(PUBLISHED)}")
    rows = []
    for name in names:
        rows.append(row(name, not given.without_inductor))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(json.dumps({"rows": [asdict(one) for one in rows]}, indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
