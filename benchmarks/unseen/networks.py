"""Networks that no decision of ours was made, tuned or tested on.

Each is a published architecture of a family that is in no record of decisions, in no other benchmark and in no test
(`benchmarks.unseen.names` checks that). Weights are random, from a fixed seed. Importing this module is cheap: libraries are
loaded when a network is exported.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.unseen.libraries import library
from benchmarks.workloads.exporting import cache_directory, write_onnx
from benchmarks.workloads.inputs import normal, smooth_noise, tokens

if TYPE_CHECKING:
    import torch

Family = Literal["vision", "text", "speech", "recommendation", "graph", "detection"]
Source = Literal["timm", "transformers", "torch-geometric", "paper"]
Arrays = dict[str, NDArray[Any]]
_FITTED_ON = range(1_000_001, 1_000_005)
"""Seeds of the inputs that weights are fitted to; none is that of an example."""
_LIBRARIES = ("torch", "onnx", "onnxscript", "timm", "torchvision", "transformers", "torch-geometric")
_VERSIONS, _EXPECTED = "versions.json", "expected.npz"


@dataclass(frozen=True)
class Builder:
    """Builds a network: it imports its module of this package, and with it PyTorch, when it is called."""

    file: str
    function: str
    arguments: tuple[str | int, ...] = ()
    options: tuple[tuple[str, object], ...] = ()

    def __call__(self) -> torch.nn.Module:
        """A network without care for its weights.

        Raises:
            MissingLibrary: a library of the extra `unseen` is not installed.
        """
        build = getattr(import_module(f"benchmarks.unseen.{self.file}"), self.function)
        built: torch.nn.Module = build(*self.arguments, **dict(self.options))
        return built


@dataclass(frozen=True)
class UnseenNetwork:
    """A network with random weights, batch 1 or a single request.

    root     the family of its architecture, by which others' lists are searched for it; `-` may be missing there
    source   the library that ships its code; `paper`: written here after the paper
    paper    where it was published
    build    the network as a PyTorch module
    inputs   seed -> one set of inputs by name, in the order of the module's arguments; equal seeds give equal arrays
    outputs  names of the outputs
    """

    name: str
    root: str
    family: Family
    source: Source
    paper: str
    build: Builder
    inputs: Callable[[int], Arrays]
    outputs: tuple[str, ...]


def export(name: str) -> tuple[Path, Arrays]:
    """The ONNX file of a network in the cache folder, written if it is not there yet, and its inputs.

    The file is shared: do not edit it. Once it is there, no library is needed. `versions.json` in its folder says which wrote it.

    Raises:
        KeyError: there is no such network.
        MissingLibrary: a library of the extra `unseen` is not installed.
        OSError: the cache cannot be written.
    """
    network = NETWORKS[name]
    kept = folder(network)
    if not kept.exists():
        _write(network, kept)
    return kept / f"{name}.onnx", network.inputs(0)


def expected(name: str) -> Arrays:
    """What PyTorch answered on `export(name)`'s inputs when the file was written, by output.

    Raises:
        KeyError, MissingLibrary, OSError: as `export`.
    """
    path, _ = export(name)
    with np.load(path.with_name(_EXPECTED), allow_pickle=False) as file:
        return {output: file[output] for output in file.files}


def module(network: UnseenNetwork) -> torch.nn.Module:
    """The network with its weights, in eval mode.

    Raises:
        MissingLibrary: a library of the extra `unseen` is not installed.
    """
    for name in ("torch", "onnxscript", *([] if network.source == "paper" else [network.source])):
        library(name.replace("-", "_"))
    import torch

    from benchmarks.unseen.weights import seeded

    batches = [list(network.inputs(seed).values()) for seed in _FITTED_ON]
    if any(array.shape[:1] != (1,) for array in batches[0]):
        batches = batches[:1]
    joined = [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]
    fitted: torch.nn.Module = seeded(network.build, tuple(torch.from_numpy(array) for array in joined))
    return fitted


def _write(network: UnseenNetwork, kept: Path) -> None:
    """A folder of its own, renamed into place: other processes see all of it or nothing."""
    built, inputs = module(network), network.inputs(0)
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{network.name}-", dir=kept.parent))
    try:
        np.savez(draft / _EXPECTED, allow_pickle=False, **_answers(built, network, inputs))
        write_onnx(built, inputs, network.outputs, draft / f"{network.name}.onnx")
        (draft / _VERSIONS).write_text(json.dumps(_versions(), indent=1), encoding="utf-8")
        try:
            draft.rename(kept)
        except OSError:
            if not kept.exists():  # another process was first otherwise, and wrote the same
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _answers(built: torch.nn.Module, network: UnseenNetwork, inputs: Arrays) -> Arrays:
    import torch

    with torch.no_grad():
        answers = built(*(torch.from_numpy(array) for array in inputs.values()))
    tensors = [answers] if isinstance(answers, torch.Tensor) else list(answers)
    return {output: tensor.numpy() for output, tensor in zip(network.outputs, tensors, strict=True)}


def _versions() -> dict[str, str]:
    installed: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def folder(network: UnseenNetwork) -> Path:
    """Where the file of a network is kept: named by the source that builds it, what that is called with, and the inputs.

    Versions of libraries are no part of it: a study may go on where they are not installed.
    """
    digest = hashlib.sha256(f"{network.build}{network.outputs}".encode())
    for source in (f"{network.build.file}.py", "weights.py"):
        digest.update(Path(__file__).with_name(source).read_bytes())
    for name, array in network.inputs(0).items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return cache_directory() / "unseen" / f"{network.name}-{digest.hexdigest()[:16]}"


def _built_by(file: str, function: str, *arguments: str | int, **options: object) -> Builder:
    return Builder(file, function, arguments, tuple(options.items()))


def _image(side: int) -> Callable[[int], Arrays]:
    return lambda seed: {"image": smooth_noise((1, 3, side, side), seed)}


def _vision(name: str, root: str, model: str, paper: str) -> UnseenNetwork:
    build = _built_by("pictures", "picture_classifier", model)
    return UnseenNetwork(name, root, "vision", "timm", paper, build, _image(224), ("logits",))


def _sentence(vocabulary: int) -> Callable[[int], Arrays]:
    """128 tokens with the last 28 masked out, as a padded sentence has."""
    mask = (np.arange(128) < 100).astype(np.int64)[None]
    return lambda seed: {"input_ids": tokens((1, 128), seed, vocabulary), "attention_mask": mask}


def _text(name: str, root: str, kind: str, paper: str, vocabulary: int, **options: object) -> UnseenNetwork:
    configuration, model = f"{kind.removesuffix('Base')}Config", f"{kind}Model"
    build = _built_by("packaged", "text_encoder", configuration, model, vocab_size=vocabulary, **options)
    return UnseenNetwork(name, root, "text", "transformers", paper, build, _sentence(vocabulary), ("states",))


def _vision_networks() -> list[UnseenNetwork]:
    return [
        _vision("vovnet-19", "vovnet", "ese_vovnet19b_dw", "Lee & Park, CenterMask, CVPR 2020"),
        _vision("pit-xs", "pit", "pit_xs_224", "Heo et al., ICCV 2021"),
        _vision("cait-xxs24", "cait", "cait_xxs24_224", "Touvron et al., ICCV 2021"),
        _vision("tiny-vit-5m", "tiny-vit", "tiny_vit_5m_224", "Wu et al., ECCV 2022"),
        _vision("gcvit-xxtiny", "gcvit", "gcvit_xxtiny", "Hatamizadeh et al., ICML 2023"),
        _vision("dpn-68", "dpn", "dpn68", "Chen et al., Dual Path Networks, NIPS 2017"),
        _vision("pvt-v2-b0", "pvt", "pvt_v2_b0", "Wang et al., CVM 2022"),
        _vision("starnet-s1", "starnet", "starnet_s1", "Ma et al., CVPR 2024"),
        _vision("selecsls-42", "selecsls", "selecsls42b", "Mehta et al., XNect, SIGGRAPH 2020"),
    ]


def _text_networks() -> list[UnseenNetwork]:
    def size(width: int, heads: int, layers: int) -> dict[str, object]:
        blocks = {"num_attention_heads": heads, "intermediate_size": 4 * width, "num_hidden_layers": layers}
        return {"hidden_size": width, **blocks}

    disentangled = {
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        **size(384, 6, 6),
    }
    convolved = {"embedding_size": 128, **size(256, 4, 12)}
    funnel = {"block_sizes": [2, 2, 2], "d_model": 512, "n_head": 8, "d_inner": 2048}
    landmarks = size(512, 8, 6)
    return [
        _text("deberta-v2-6", "deberta", "DebertaV2", "He et al., ICLR 2021", 30000, **disentangled),
        _text("convbert-small", "convbert", "ConvBert", "Jiang et al., NeurIPS 2020", 30522, **convolved),
        _text("funnel-6", "funnel", "FunnelBase", "Dai et al., NeurIPS 2020", 30522, **funnel),
        _text("nystromformer-6", "nystromformer", "Nystromformer", "Xiong et al., AAAI 2021", 30000, **landmarks),
    ]


def _speech_networks() -> list[UnseenNetwork]:
    def spectrogram(seed: int) -> Arrays:
        return {"spectrogram": smooth_noise((1, 1, 400, 128), seed)[0]}

    def frames(seed: int) -> Arrays:
        return {"spectrogram": smooth_noise((1, 1, 100, 80), seed)[0, 0]}

    def features(seed: int) -> Arrays:
        return {"features": smooth_noise((1, 1, 80, 300), seed)[0]}

    entries: list[tuple[str, str, Source, str, Builder, Callable[[int], Arrays], str]] = [
        (
            "spectrogram-transformer",
            "audio-spectrogram-transformer",
            "transformers",
            "Gong et al., AST, Interspeech 2021",
            _built_by("packaged", "sound_classifier"),
            spectrogram,
            "logits",
        ),
        (
            "hifi-gan",
            "hifi-gan",
            "transformers",
            "Kong et al., NeurIPS 2020",
            _built_by("packaged", "vocoder"),
            frames,
            "waveform",
        ),
        (
            "ecapa-tdnn",
            "ecapa",
            "paper",
            "Desplanques et al., Interspeech 2020",
            _built_by("speech", "SpeakerEncoder"),
            features,
            "speaker",
        ),
    ]
    return [
        UnseenNetwork(name, root, "speech", source, paper, build, inputs, (output,))
        for name, root, source, paper, build, inputs, output in entries
    ]


def _recommendation_networks() -> list[UnseenNetwork]:
    def advertisements(seed: int) -> Arrays:
        """1,024 candidates with 26 categories and 13 numbers."""
        return {"categories": tokens((1024, 26), seed, 4000), "numbers": normal((1024, 13), seed + 1)}

    def interests(seed: int) -> Arrays:
        """512 candidates for a user who did 50 things, 40 of them known."""
        history, candidates = tokens((1, 50), seed, 20000), tokens((512,), seed + 1, 20000)
        return {"history": history, "length": np.array([40], np.int64), "candidates": candidates}

    def histories(seed: int) -> Arrays:
        return {"history": tokens((8, 200), seed, 20000)}

    entries: list[tuple[str, str, str, Callable[[int], Arrays], str]] = [
        ("deepfm", "DeepFM", "Guo et al., IJCAI 2017", advertisements, "clicks"),
        ("dcn-v2", "DeepCross", "Wang et al., WWW 2021", advertisements, "clicks"),
        ("deep-interest", "DeepInterest", "Zhou et al., KDD 2018", interests, "clicks"),
        ("sasrec", "SelfAttentive", "Kang & McAuley, ICDM 2018", histories, "scores"),
    ]
    return [
        UnseenNetwork(
            name,
            "dcn" if name == "dcn-v2" else name,
            "recommendation",
            "paper",
            paper,
            _built_by("recommenders", function),
            inputs,
            (output,),
        )
        for name, function, paper, inputs, output in entries
    ]


def _edges(nodes: int, count: int, seed: int) -> NDArray[np.int64]:
    """(2, edges), both directions of each, half of them at few nodes, as in citations."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, nodes, count // 2)
    second = (nodes * rng.random(count // 2) ** 3).astype(np.int64)
    return np.stack([np.concatenate([first, second]), np.concatenate([second, first])])


def _graph_networks() -> list[UnseenNetwork]:
    def neighbourhood(seed: int) -> Arrays:
        """2,048 nodes, as sampled around those that are asked for."""
        return {"features": normal((2048, 128), seed), "edges": _edges(2048, 10000, seed + 1)}

    def citations(seed: int) -> Arrays:
        """Of the size of Cora; each also has an edge to itself."""
        nodes = 2708
        edges = np.concatenate([_edges(nodes, 10556, seed + 1), np.tile(np.arange(nodes), (2, 1))], axis=1)
        return {"features": normal((nodes, 500), seed), "edges": edges}

    def atoms(seed: int) -> Arrays:
        kinds = np.random.default_rng(seed).choice(np.array([1, 6, 7, 8], np.int64), 48)
        return {"atoms": kinds, "positions": 2.0 * normal((48, 3), seed + 1)}

    entries: list[tuple[str, str, str, Builder, Callable[[int], Arrays], str]] = [
        (
            "gat",
            "gat",
            "Veličković et al., ICLR 2018",
            _built_by("graphs", "graph_attention", 500, 7),
            citations,
            "classes",
        ),
        (
            "graphsage",
            "graphsage",
            "Hamilton et al., NIPS 2017",
            _built_by("graphs", "graph_sampling", 128, 40),
            neighbourhood,
            "classes",
        ),
        ("schnet", "schnet", "Schütt et al., NIPS 2017", _built_by("graphs", "molecule", 48), atoms, "energy"),
    ]
    return [
        UnseenNetwork(name, root, "graph", "torch-geometric", paper, build, inputs, (output,))
        for name, root, paper, build, inputs, output in entries
    ]


def _detection_networks() -> list[UnseenNetwork]:
    entries = [
        ("yolos-tiny", "yolos", "Fang et al., NeurIPS 2021", _built_by("packaged", "token_detector", 320)),
        (
            "conditional-detr-18",
            "conditional-detr",
            "Meng et al., ICCV 2021",
            _built_by("packaged", "query_detector", "ConditionalDetr", out_features=["stage4"]),
        ),
    ]
    return [
        UnseenNetwork(name, root, "detection", "transformers", paper, build, _image(320), ("classes", "boxes"))
        for name, root, paper, build in entries
    ]


NETWORKS: Mapping[str, UnseenNetwork] = MappingProxyType(
    {
        network.name: network
        for network in (
            *_vision_networks(),
            *_text_networks(),
            *_speech_networks(),
            *_recommendation_networks(),
            *_graph_networks(),
            *_detection_networks(),
        )
    }
)
"""By name."""
