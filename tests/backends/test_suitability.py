"""A configuration that changes nothing in a region is not offered for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, Backend, RegionModel, Resources
from bricolage.backends.iree import Iree
from bricolage.backends.iree_compile import CONVOLUTIONS, IN_BF16, OPTIONS, compile_in_child, processor
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.backends.native.region_builder import generate_region_source
from bricolage.base.options import PRECISIONS
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.graph import Graph
from bricolage.native.cpu import isa as isas
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

IMAGE, ROWS = "float[1,16,12,12]", "float[8,64]"
DRAW = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A small region: the body of its text, its ends, and its constants."""

    body: str
    inputs: str = f"{ROWS} x"
    output: str = ROWS
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    opset: int = 20

    def on_disk(self, folder: Path) -> RegionModel:
        """As backends get it."""
        domains = ', "com.microsoft" : 1'
        return regions.region(folder, self.body, self.inputs, f"{self.output} y", self.opset, domains, **self.constants)


def conv(*weights: int, options: str = "", op: str = "Conv") -> Case:
    """On images of 12 elements a side."""
    width, grows = len(weights) - 2, 1 if op == "ConvTranspose" else -1
    inputs, outputs = ([1, 16, *[size] * width] for size in (12, 12 + grows * (weights[-1] - 1)))
    return Case(f"y = {op} {options} (x, w)", f"float{inputs} x", f"float{outputs}", {"w": regions.noise(*weights)})


def blocks(level: int) -> Case:
    made = f"com.microsoft.MatMulNBits <K = 64, N = 64, bits = 4, block_size = 32, accuracy_level = {level}>"
    packed = DRAW.integers(0, 255, (64, 2, 16)).astype(np.uint8)
    return Case(f"y = {made} (x, q, s)", constants={"q": packed, "s": np.abs(regions.noise(128)) / 100})


WEIGHTS = regions.noise(64, 64)
BYTES = DRAW.integers(-127, 128, (64, 64)).astype(np.int8)
CASES = {
    "function": Case("y = Exp (x)"),
    "integers": Case("y = Add (x, x)", "int64[8,64] x", "int64[8,64]"),
    "pool": Case("y = MaxPool <kernel_shape = [2, 2]> (x)", f"{IMAGE} x", "float[1,16,11,11]"),
    "softmax": Case("y = Softmax (x)"),
    "product": Case("y = MatMul (x, w)", constants={"w": WEIGHTS}),
    "integer product": Case("y = MatMul (x, x)", "int32[8,8] x", "int32[8,8]"),
    "products": Case("a = MatMul (x, w) b = Gelu (a) y = MatMul (b, w)", constants={"w": WEIGHTS}),
    "residual": Case("a = MatMul (x, w) b = Add (a, x) c = Tanh (b) d = MatMul (c, w) y = Add (d, b)", constants={"w": WEIGHTS}),
    "branches": Case("a = MatMul (x, w) b = MatMul (x, v) y = Add (a, b)", constants={"w": WEIGHTS, "v": WEIGHTS.T.copy()}),
    "computed": Case("y = MatMul (x, x)", "float[64,64] x", "float[64,64]"),
    "convolution": conv(16, 16, 1, 1),
    "tiles": conv(16, 16, 3, 3),
    "depthwise": conv(16, 1, 3, 3, options="<group = 16>"),
    "groups": conv(16, 8, 3, 3, options="<group = 2>"),
    "one dimension": conv(16, 16, 3),
    "transposed": conv(16, 16, 3, 3, op="ConvTranspose"),
    "blocks": blocks(0),
    "blocks in bytes": blocks(4),
    "bytes": Case(
        "a = QuantizeLinear (x, c, z) b = DequantizeLinear (a, c, z) v = DequantizeLinear (q, c) y = MatMul (b, v)",
        constants={"q": BYTES, "c": np.float32(0.02), "z": np.uint8(128)},
    ),
    "rounding": Case(
        "a = QuantizeLinear (x, c, z) y = DequantizeLinear (a, c, z)",
        constants={"c": np.float32(0.02), "z": np.uint8(128)},
    ),
}  # fmt: skip
PLAIN = {"function", "integers", "pool", "softmax", "integer product", "rounding"}
"""Without any product of floats or bytes."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def region(case: str, tmp_path: Path) -> RegionModel:
    return CASES[case].on_disk(tmp_path)


def able() -> Device:
    """A processor that has every instruction."""
    needs = (isa.needs for isa in isas.ISAS)
    return replace(
        host(), instructions=host().instructions.union(*needs, ["amx_int8", "avx512_bf16", "avx512_vnni"]), isa=""
    )


def offered(backend: Backend, region: RegionModel, device: Device) -> set[str]:
    """Names of what is offered at any precision."""
    whole = Graph(region.model).everything
    return {one.name for word in PRECISIONS for one in backend.suited_configs(word, device, whole)}


# --- what is offered ------------------------------------------------------------------------------------------------


def test_openvino(case: str, region: RegionModel) -> None:
    expected = {"f32"}
    expected |= set() if case in PLAIN else {"bf16"}
    expected |= {"int8-blocks"} if case in ("blocks", "blocks in bytes") else set()
    assert offered(registry.get("openvino"), region, able()) == expected


def test_onnx_runtime(case: str, region: RegionModel) -> None:
    without = replace(able(), instructions=frozenset({"avx2"}), cores=(0, 1))
    expected = {"f32"}
    expected |= {"f32-parallel"} if case == "branches" else set()
    expected |= {"f32-exact-bytes"} if case == "bytes" else set()
    expected |= {"int8-blocks"} if case == "blocks" else set()
    assert offered(registry.get("onnxruntime"), region, without) == expected


def test_libraries_of_kernels(case: str, region: RegionModel) -> None:
    images = {"pool", "convolution", "tiles", "depthwise", "groups", "transposed"}
    floats = case not in ("integers", "integer product")
    expected = {"f32", *(["bf16"] if floats else [])}
    assert offered(registry.get("xla"), region, able()) == expected
    assert offered(registry.get("inductor"), region, able()) == expected
    assert offered(registry.get("tvm"), region, able()) == {"f32"}
    expected |= {"f32-nhwc", "bf16-nhwc"} if case in images else set()
    assert offered(registry.get("torch"), region, able()) == expected


def test_nothing_but_the_plain_configuration_where_nothing_is_multiplied(
    case: str, region: RegionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FORCED_ISA_VARIABLE, raising=False)
    monkeypatch.setattr(isas, "tiles_permitted", lambda: True)
    assert (offered(Native(), region, able()) == {"f32"}) == (case in PLAIN)


def test_bodies_of_control_flow_count(tmp_path: Path) -> None:
    text = (
        "y = If (c) <then_branch = t () => (float[8,64] a) { a = MatMul (x, w) }, "
        "else_branch = e () => (float[8,64] b) { b = Exp (x) }>"
    )
    region = Case(text, f"bool c, {ROWS} x", constants={"w": WEIGHTS}).on_disk(tmp_path)
    assert offered(registry.get("openvino"), region, able()) == {"f32", "bf16"}


# --- what is offered differs ----------------------------------------------------------------------------------------


def test_no_two_of_our_own_generate_the_same(case: str, region: RegionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among those that it compiles: what suits by its operators may be refused by its kernels."""
    monkeypatch.delenv(FORCED_ISA_VARIABLE, raising=False)
    monkeypatch.setattr(isas, "tiles_permitted", lambda: True)
    resources, made = Resources(threads=2, device=able()), dict[str, tuple[str, bytes]]()
    for name in sorted(offered(Native(), region, able())):
        try:
            source = generate_region_source(RegionModel(region.path), KernelConfig(name), resources, {})
        except Refused:
            continue
        functions = source.text[source.text.index("static __attribute__((noinline)) void") :]
        made[name] = functions, source.weights.tobytes()
    assert "f32" in made
    for one, other in itertools.combinations(made, 2):
        assert made[one] != made[other], (one, other)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "torch", "native"])
def test_other_arithmetic_gives_other_answers(name: str, case: str, region: RegionModel) -> None:
    """Of what is offered on this machine and not refused. Other layouts, tiles and orders may give the same."""
    backend = registry.get(name)
    if not isinstance(backend.status(), Available):
        pytest.skip(f"{name} is not installed")
    inputs = [(2 * regions.noise(*info.sizes)).astype(info.numpy) for info in region.inputs]
    found: dict[str, bytes] = {}
    for config in sorted(offered(backend, region, host())):
        if not config.startswith(("bf16", "int8", "f32-exact")) and config != "f32":
            continue
        try:
            answer = regions.answer(backend, region, *inputs, config=KernelConfig(config))
        except Refused:
            assert name in ("native", "torch")
            continue
        plain = config.removesuffix("-nhwc").removesuffix("-winograd2").removesuffix("-stored")
        found.setdefault(plain, b"".join(np.asarray(one).tobytes() for one in answer))
    exact = {"f32-exact-bytes"}  # equal where no sum of two products saturates
    for one, other in itertools.combinations(found.keys() - exact, 2):
        assert found[one] != found[other], (one, other)


@pytest.mark.slow
def test_what_iree_makes_differs_where_it_is_offered(case: str, region: RegionModel, tmp_path: Path) -> None:
    """In the form before code is generated, which is the same for equal programs."""
    if not isinstance(Iree().status(), Available):
        pytest.skip("IREE is not installed")
    names = {**CONVOLUTIONS, **IN_BF16}
    made: dict[str, bytes] = {}
    for name, options in names.items():
        path = tmp_path / name
        try:
            compile_in_child(
                RegionModel(region.path), path, (*OPTIONS, *processor(host()), *options, "--compile-to=flow")
            )
        except Refused:
            return
        made[name] = path.read_bytes()
    told = offered(Iree(), region, able())
    assert ("f32-channels-last" in told) == (made["f32-channels-last"] != made["f32"])
    assert ("bf16" in told) == (made["bf16"] != made["f32"])
    assert ("bf16-channels-last" in told) == ("bf16" in told and made["bf16-channels-last"] != made["bf16"])
