"""Fusion rates of the fifteen networks that DNNFusion counted, here and there: `python -m benchmarks.fusion.fusion_rate`.

    python -m benchmarks.fusion.fusion_rate
    python -m benchmarks.fusion.fusion_rate --network vgg16,gpt2 --peers onnxruntime,openvino
    python -m benchmarks.fusion.fusion_rate --network vgg16 --apart
    python -m benchmarks.fusion.fusion_rate --rows rows.jsonl

The paper's figures are those of table 5 of Niu et al. (PLDI 2021): layers before fusion, and after it by DNNFusion, TVM, TFLite,
MNN and PyTorch Mobile. Its measure is the rate: layers before for each kernel after. `layers` are the nodes of a network's full
export as the paper's tools wrote them (`benchmarks.fusion.full_exports`), without those that depend on constants alone;
`operators`, those left once sizes are bound and constants folded; `rewritten`, those left by the canonicalising rules, which every
decision applies, and the paper's system likewise. Every tool has the folded graph; the native engine the rewritten one, too, and
the one with fewer kernels counts. `layer rate` is layers / kernels, `operator rate` operators / kernels. Graphs whose sizes depend
on data are counted as the engine takes them, in regions of static sizes, and each operator outside of them is a kernel of its
own; peers are not counted there.

`--apart` lists instead what stays apart: kernels by kind, and edges between two kernels by the paper's verdict. `--rows` keeps each
count in a file as it ends, and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import onnx

from benchmarks.fusion.full_exports import FULL_EXPORTS, write_full_export
from benchmarks.fusion.native_kernels import NativeCount, count_native, write_region
from benchmarks.fusion.peer_kernels import PEERS
from bricolage.backends.interface import RegionModel
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from bricolage.rewrite.variants import rewritten_variants


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
    "faster-rcnn": Published("Faster R-CNN", 3640, 942),
    "mask-rcnn": Published("Mask R-CNN", 3999, 981),
    "tinybert": Published("TinyBERT", 366, 74, 304, 322),
    "distilbert": Published("DistilBERT", 457, 109, 416, 431),
    "albert": Published("ALBERT", 936, 225, 746, 855),
    "bert-base": Published("BERT-base", 976, 216, 760, 873),
    "mobilebert": Published("MobileBERT", 2387, 510, 1678, 2128),
    "gpt2": Published("GPT-2", 2533, 254, 2047, 2223),
}


@dataclass
class RateRow:
    """One network; None or missing where it was not counted."""

    network: str
    layers: int
    operators: int
    rewritten: int
    native: int
    kinds: dict[str, int]
    """Our kernels by kind."""
    edges: dict[str, int]
    """Edges between two of our kernels, by the paper's verdict of their cell."""
    outside: int = 0
    """Of our kernels: operators whose sizes depend on data."""
    peers: dict[str, int | str] = field(default_factory=dict)
    """Counted here; a text says why not."""

    @property
    def layer_rate(self) -> float:
        """The paper's measure."""
        return self.layers / self.native

    @property
    def operator_rate(self) -> float:
        """The same without what folding takes away."""
        return self.operators / self.native


def count_network(name: str, peers: Sequence[str], row: RateRow | None = None) -> RateRow:
    """Exports a network and counts it with the engine and these peers; with `row`, with the peers that it lacks."""
    export = FULL_EXPORTS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        write_full_export(export, path)
        layers = count_layers(path)
        graph = prepare(to_model(path), dict(export.sizes))
        path.unlink()
        counted = _count_ours(name, layers, graph) if row is None else replace(row, layers=layers)
        missing = [peer for peer in peers if peer not in counted.peers]
        if counted.outside:
            return replace(counted, peers=counted.peers | dict.fromkeys(missing, "sizes depend on data"))
        region = write_region(graph, _new_folder(folder, "peers")) if missing else None
        for peer in missing:
            assert region is not None
            counted.peers[peer] = _count_peer(peer, region, _new_folder(folder, peer))
    return counted


def _new_folder(parent: str, name: str) -> Path:
    folder = Path(parent) / name
    folder.mkdir()
    return folder


def count_layers(path: Path) -> int:
    """Nodes of a file, those of its branches and loops included, without what depends on constants alone."""
    todo, count = [onnx.load(path, load_external_data=False).graph], 0
    constant = {""}
    while todo:
        graph = todo.pop()
        constant.update(tensor.name for tensor in graph.initializer)
        for node in graph.node:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            if not bodies and constant.issuperset(node.input) and not node.op_type.startswith("Random"):
                constant.update(node.output)
                continue
            count += 1
            todo += bodies
    return count


def _count_ours(name: str, layers: int, graph: Graph) -> RateRow:
    """Of a graph, whose weights stay with it, and of the rewritten one: the fewer kernels."""
    variants = [Graph(graph.model.clone()), *(variant.graph for variant in rewritten_variants(graph))]
    counts: list[NativeCount] = []
    for variant in variants:
        with tempfile.TemporaryDirectory() as folder:
            counts.append(count_native(variant, Path(folder)))
    best = min(counts, key=lambda count: count.kernels)
    return RateRow(name, layers, len(graph), len(variants[-1]), best.kernels, best.kinds, best.edges, best.outside)


def _count_peer(peer: str, region: RegionModel, folder: Path) -> int | str:
    """Kernels; or why there is no count."""
    try:
        count = PEERS[peer](region, folder)
    except Exception as error:  # a compiler's refusal of one network ends no count of others
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return "not installed" if count is None else count


def rate_table(rows: Sequence[RateRow]) -> str:
    """Markdown."""
    heads = ["network", "layers", "operators", "rewritten", "native", "layer rate", "operator rate"]
    heads += ["layers, paper", "DNNFusion, paper", "rate, paper", "best peer, paper", *PEERS]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in rows:
        paper = PUBLISHED[row.network]
        others = [count for name in _PAPER_PEERS if (count := getattr(paper, name)) is not None]
        cells = [paper.name, row.layers, row.operators, row.rewritten, row.native]
        cells += [f"{row.layer_rate:.2f}", f"{row.operator_rate:.2f}", paper.layers, paper.dnnfusion]
        cells += [f"{paper.layers / paper.dnnfusion:.2f}", min(others, default="")]
        counts = (row.peers.get(name, "") for name in PEERS)
        cells += [count if isinstance(count, int) else "" if not count else "–" for count in counts]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def apart_table(rows: Sequence[RateRow]) -> str:
    """Markdown: kernels by kind, and edges between kernels by the paper's verdict."""
    kinds = sorted({kind for row in rows for kind in row.kinds})
    lines = [f"| network | kernels | {' | '.join(kinds)} | edges: fuse | measure | never |"]
    lines.append(f"|---|{'---:|' * (len(kinds) + 4)}")
    for row in rows:
        cells = [row.native, *(row.kinds.get(kind, "") for kind in kinds)]
        cells += [row.edges.get(verdict, 0) for verdict in ("fuse", "measure", "never")]
        lines.append(f"| {PUBLISHED[row.network].name} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _read_rows(path: Path | None) -> dict[str, RateRow]:
    if path is None or not path.exists():
        return {}
    documents = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {document["network"]: RateRow(**document) for document in documents}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default=",".join(PUBLISHED), help="names, with commas between")
    parser.add_argument("--peers", default=",".join(PEERS), help="names; Inductor takes minutes for a large network")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where rows are kept, and read again")
    parser.add_argument("--apart", action="store_true", help="what stays apart, instead of rates")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    names, peers = given.network.split(","), [peer for peer in given.peers.split(",") if peer]
    unknown = [name for name in names if name not in PUBLISHED] + [peer for peer in peers if peer not in PEERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}. There are {', '.join(PUBLISHED)}; and {', '.join(PEERS)}")
    kept = _read_rows(given.rows)
    for name in names:
        known = kept.get(name)
        if known is None or not set(peers) <= known.peers.keys():
            kept[name] = count_network(name, peers, known)
            print(rate_table([kept[name]]).splitlines()[-1], file=sys.stderr, flush=True)
        if given.rows is not None:
            text = "".join(json.dumps(asdict(row)) + "\n" for row in kept.values())
            given.rows.write_text(text, encoding="utf-8")
    rows = [kept[name] for name in names]
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(apart_table(rows) if given.apart else rate_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
