"""What every engine must do; where one refuses, a table says so and the refusal is checked."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, Backend, Missing, RegionModel, Resources
from bricolage.base import sealed
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

ENGINES = ("onnxruntime", "openvino", "torch", "inductor", "xla", "tvm", "iree", "native")


def only(*names: str) -> pytest.MarkDecorator:
    """For these engines."""
    return pytest.mark.parametrize("backend", names, indirect=True)


def but(*names: str) -> pytest.MarkDecorator:
    """For every engine but these."""
    return only(*(name for name in ENGINES if name not in names))


_SLOW = {
    "inductor": pytest.mark.slow
}  # ten seconds a network: tests that name no engine are run on it by `make test-all`


def weekly(*names: str) -> pytest.MarkDecorator:
    """For every engine; for these by `make test-all` only."""
    slow = {*names, *_SLOW}
    engines = [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in ENGINES]
    return pytest.mark.parametrize("backend", engines, indirect=True)


@pytest.fixture(params=[pytest.param(name, marks=_SLOW[name]) if name in _SLOW else name for name in ENGINES])
def backend(request: pytest.FixtureRequest) -> Backend:
    found = registry.get(request.param)
    status = found.status()
    if isinstance(status, Missing):
        pytest.skip(f"{found.title}: {status.reason}")
    return found


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def resources(backend: Backend, compiled: Path) -> Resources:
    """One thread. What takes seconds to compile is kept for the other tests."""
    return Resources(threads=1, cache=compiled if backend.compiles_slowly else None)


def test_it_is_here_with_its_version(backend: Backend) -> None:
    status = backend.status()
    assert isinstance(status, Available)
    assert status.version == registry.version(backend.name)


# --- right answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_configuration_of_a_convolutional_network(
    backend: Backend, all_of_them: bool, resources: Resources, tmp_path: Path
) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    expected = regions.reference(model, x)
    # see native/test_winograd and test_onnxruntime for the others
    named = [
        config
        for config in backend.configs("medium", host())
        if "winograd" not in config.name and "parallel" not in config.name
    ]
    if backend.compiles_slowly and not all_of_them:
        named = [named[0], named[-1]]  # they differ in all that there is to choose
    for config in dict.fromkeys(named):
        error = regions.error(regions.answer(backend, model, x, config=config, resources=resources), expected)
        if config.name.startswith("bf16"):
            assert 1e-6 < error < 2e-2
        else:
            assert error < 1e-6, config


@weekly("iree")
def test_several_outputs(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    model, x = regions.attention_block(tmp_path), regions.noise(1, 16, 32)
    assert [info.name for info in model.outputs] == ["y", "p"]
    found = regions.answer(backend, model, x, resources=resources)
    assert regions.error(found, regions.reference(model, x)) < 2e-6


def test_attention_with_heads_split_and_keys_turned_at_once(
    backend: Backend, resources: Resources, tmp_path: Path
) -> None:
    """Inductor's pattern for attention took that transposition of the keys for another and failed to compile."""
    model = regions.attention_heads(tmp_path)
    given = [regions.noise(1, 8, 8, seed=seed) for seed in range(3)]
    found = regions.answer(backend, model, *given, resources=resources)
    assert regions.error(found, regions.reference(model, *given)) < 1e-6


def test_two_threads_compute_the_same(backend: Backend, tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    found = regions.answer(backend, model, x, resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, x)) < 1e-6


UNUSUAL = (np.float32(3), np.zeros((0, 2), np.float32), np.float32([[1, 2]]))


def unusual_sizes(folder: Path) -> RegionModel:
    """On a scalar and on nothing."""
    return regions.region(
        folder,
        "y = Mul (s, s) \n z = Concat <axis = 0> (e, g) \n r = Relu (e)",
        "float s, float[0, 2] e, float[1, 2] g",
        "float y, float[1, 2] z, float[0, 2] r",
    )


@weekly("iree")
def test_scalars_and_empty_tensors(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    y, z, r = regions.answer(backend, unusual_sizes(tmp_path), *UNUSUAL, resources=resources)
    assert y.tolist() == 9
    assert z.tolist() == [[1, 2]]
    assert r.shape == (0, 2)


@weekly("iree")
def test_outputs_that_nothing_computes(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    """Outputs that are inputs, constants or views, or repeat; and an input that nothing reads."""
    model = regions.region(
        tmp_path,
        """
        same = Identity (x)
        again = Identity (x)
        y = Relu (x)
        repeated = Identity (y)
        constant = Identity (c)
        turned = Transpose (m)
        flat = Flatten <axis = 0> (m)
        """,
        "float[4] x, float[2, 3] m, float[4] unread",
        "float[4] same, float[4] again, float[4] y, float[4] repeated, float[4] constant, float[3, 2] turned, float[1, 6] flat",
        c=np.float32([9, 8, 7, 6]),
    )
    x, m = np.float32([1, -2, 3, -4]), regions.noise(2, 3)
    found = regions.answer(backend, model, x, m, x, resources=resources)
    y = np.maximum(x, 0)
    expected = [x, x, y, y, np.float32([9, 8, 7, 6]), m.T, m.reshape(1, 6)]
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]


# --- bound calls and runs -------------------------------------------------------------------------------------------


def test_buffers_are_read_again(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    """The call reads its input buffers each time and leaves them alone, and writes the same output buffers."""
    model = regions.conv_net(tmp_path)
    inputs, outputs, call = regions.bound(
        backend.compile(model, regions.F32, resources), model, regions.noise(1, 8, 32, 32)
    )
    place = outputs[0].ctypes.data
    for seed in (1, 2, 1):
        x = regions.noise(1, 8, 32, 32, seed=seed)
        inputs[0][...] = x
        call()
        assert outputs[0].ctypes.data == place
        assert np.array_equal(inputs[0], x)
        assert regions.error(outputs, regions.reference(model, x)) < 1e-6


@only("torch", "inductor", "xla")
def test_calls_bound_to_inputs_give_outputs_of_the_callers_own(
    backend: Backend, resources: Resources, tmp_path: Path
) -> None:
    """Whatever they could share memory with: an input, a constant, each other, and what a later call gives."""
    model = regions.region(
        tmp_path,
        "same = Identity (x) y = Relu (x) repeated = Identity (y) constant = Identity (c) n = Add (k, k)",
        "float[4] x, int64 k",
        "float[4] same, float[4] y, float[4] repeated, float[4] constant, int64 n",
        c=np.float32([9, 8, 7, 6]),
    )
    inputs = [allocate_aligned((4,), np.dtype(np.float32)), allocate_aligned((), np.dtype(np.int64))]
    kernel = backend.compile(model, regions.F32, resources)
    if backend.name == "inductor":  # here: another network would take it ten seconds
        with pytest.raises(Refused, match=r"compiled for the shape \(4,\)"):
            kernel.run([np.zeros(5, np.float32), np.int64(0)])
    answer = kernel.bind_inputs(inputs)
    assert answer is not None
    earlier: list[tuple[np.ndarray, list[float] | int]] = []
    for number in range(4):
        x = np.float32([1, -2, 3, -4]) * (number + 1)
        inputs[0][...], inputs[1][...] = x, number
        y = np.maximum(x, 0)
        expected = [x, x.clip(0), y, np.float32([9, 8, 7, 6]), np.int64(2 * number)]
        found = [np.asarray(value) for value in answer()]
        assert [value.tolist() for value in found] == [value.tolist() for value in expected]
        assert all(before.tolist() == left for before, left in earlier)
        for value in found:
            assert value.flags.writeable and value.flags.c_contiguous
            value[...] = 77
        assert inputs[0].tolist() == x.tolist()
        earlier += [(value, value.tolist()) for value in found]


def test_two_bindings_of_one_kernel(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    """They do not disturb each other, and live on without the kernel."""
    model = regions.conv_net(tmp_path)
    kernel = backend.compile(model, regions.F32, resources)
    inputs = [regions.noise(1, 8, 32, 32, seed=seed) for seed in (1, 2)]
    bound = [regions.bound(kernel, model, x) for x in inputs]
    del kernel
    for _, _, call in bound:
        call()
    for x, (_, outputs, _) in zip(inputs, bound, strict=True):
        assert regions.error(outputs, regions.reference(model, x)) < 1e-6


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_runs_read_arrays_without_changing_them(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    x.flags.writeable = False
    kernel = backend.compile(model, regions.F32, resources)
    first, second = (kernel.run([value]) for value in (x, x + 1))
    assert regions.error(np.asarray(first), regions.reference(model, x)) < 1e-6
    assert regions.error(np.asarray(second), regions.reference(model, x + 1)) < 1e-6


def test_runs_take_arrays_of_any_layout(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    kernel = backend.compile(model, regions.F32, resources)
    expected = regions.reference(model, x)
    for given in (np.asfortranarray(x), np.repeat(x, 2, axis=3)[..., ::2]):
        assert regions.error(np.asarray(kernel.run([given])), expected) < 1e-6


def test_runs_give_fresh_outputs(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    kernel = backend.compile(regions.region(tmp_path, "y = Identity (x)"), regions.F32, resources)
    x = np.float32([1, 2, 3, 4])
    (y,) = kernel.run([x])
    x[...] = 0
    assert np.asarray(y).tolist() == [1, 2, 3, 4]


def test_runs_take_scalars_and_empty_tensors(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    found = backend.compile(unusual_sizes(tmp_path), regions.F32, resources).run(UNUSUAL)
    assert [np.asarray(value).tolist() for value in found] == [9, [[1, 2]], []]


@only("iree")
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_wide_normalisation_fits_on_the_stack_of_its_threads(
    backend: Backend, threads: int, compiled: Path, tmp_path: Path
) -> None:
    model = regions.region(
        tmp_path,
        "y = LayerNormalization (x, scale, shift)",
        "float[1, 128, 768] x",
        "float[1, 128, 768] y",
        scale=np.ones(768, np.float32),
        shift=np.zeros(768, np.float32),
    )
    x = regions.noise(1, 128, 768)
    found = regions.answer(backend, model, x, resources=Resources(threads=threads, cache=compiled))
    assert regions.error(found, regions.reference(model, x)) < 1e-5


@only("xla", "tvm", "iree")
def test_other_shapes_than_the_compiled_one_are_refused(backend: Backend, tmp_path: Path) -> None:
    kernel = backend.compile(regions.region(tmp_path, "y = Relu (x)"), regions.F32, regions.ONE_THREAD)
    with pytest.raises(Refused, match=r"compiled for the shape \(4,\)"):
        kernel.run([np.zeros(5, np.float32)])


def test_dynamic_shapes_run_or_are_refused(backend: Backend, tmp_path: Path) -> None:
    model = regions.region(tmp_path, "a = Relu (x) \n y = ReduceSum (a)", "float[n, 2] x", "float[1, 1] y")
    if not backend.dynamic:
        with pytest.raises(Refused, match="shapes must be known"):
            backend.compile(model, regions.F32, regions.ONE_THREAD)
        return
    kernel = backend.compile(model, regions.F32, regions.ONE_THREAD)
    for count in (1, 5, 3):
        x = regions.noise(count, 2, seed=count)
        assert np.allclose(kernel.run([x])[0], regions.reference(model, x)[0], rtol=1e-6)


# --- element types --------------------------------------------------------------------------------------------------

TYPES = {
    **{
        name: ("Add ({x}, {x})", name, name, np.array([3, 7, 50], kind))
        for name, kind in {
            "int8": np.int8,
            "int16": np.int16,
            "int32": np.int32,
            "int64": np.int64,
            "uint8": np.uint8,
            "uint16": np.uint16,
            "uint32": np.uint32,
            "uint64": np.uint64,
            "float16": np.float16,
            "bfloat16": ml_dtypes.bfloat16,
            "double": np.float64,
        }.items()
    },
    "bool": ("Not ({x})", "bool", "bool", np.array([True, False, True])),
    "complex64": ("Identity ({x})", "complex64", "complex64", np.complex64([1, 2j, 3])),
    "to bfloat16": ("Cast <to = 16> ({x})", "float", "bfloat16", np.float32([1, -2.5, 3.14159])),
    "from bfloat16": ("Cast <to = 1> ({x})", "bfloat16", "float", np.array([1, -2.5, 3.14159], ml_dtypes.bfloat16)),
    "to float8": ("Cast <to = 17> ({x})", "float", "float8e4m3fn", np.float32([1, -2.5, 3.14159])),
    "to int4": ("Cast <to = 22> ({x})", "float", "int4", np.float32([1, 2, 3])),
    "int8 that wraps": ("Add ({x}, {x})", "int8", "int8", np.int8([3, 100, -100])),
    "uint8 that wraps": ("Add ({x}, {x})", "uint8", "uint8", np.uint8([3, 250, 200])),
    "large int64": ("Add ({x}, {x})", "int64", "int64", np.int64([1 << 40, -3, 1])),
    "large uint64": ("Add ({x}, {x})", "uint64", "uint64", np.uint64([(1 << 62) + 1, 3, 1])),
    "exact double": ("Mul ({x}, {x})", "double", "double", np.float64([1e-9, 3, 1 / 3])),
}
"""Operator, types of its input and output of three elements, and the input."""

_TORCH = {
    "uint16": "no UINT16 kernel for Add",
    "uint32": "no UINT32 kernel for Add",
    "uint64": "no UINT64 kernel for Add",
    "large uint64": "no UINT64 kernel for Add",
    "to float8": "does not compute with FLOAT8E4M3FN",
    "to int4": "does not compute with INT4",
}
_NATIVE = {
    "complex64": "has the type complex64",
    "to float8": "has the type float8",
    "to int4": "has the type int4",
}
_BOUNDARY = {"complex64": "element type of 'x", "to float8": "element type of 'y", "to int4": "element type of 'y"}
REFUSED_TYPES = {
    "onnxruntime": {
        "bfloat16": "Could not find an implementation for Add",
        "complex64": r"tensor\(complex64\)",
        "to int4": "'y' packs several elements into a byte",
    },
    "openvino": {"complex64": "'x' has the type COMPLEX64", "to int4": "'y' has the type INT4"},
    "torch": _TORCH,
    "inductor": _TORCH,
    "xla": {"to float8": "not used with FLOAT8E4M3FN", "to int4": "not used with INT4"},
    "tvm": _BOUNDARY,
    "iree": _BOUNDARY,
    "native": _NATIVE,
}
"""Engine → type → reason."""

NARROWED = {"openvino": {"int8 that wraps", "uint8 that wraps", "large int64", "large uint64", "exact double"}}
"""OpenVINO saturates bytes and computes types of 64 bits in 32."""


def typed(folder: Path, *names: str) -> RegionModel:
    """A region that computes each of these types, with inputs x, x1, x2, … and outputs y, y1, y2, …"""
    body, inputs, outputs = [], [], []
    for i, name in enumerate(names):
        operator, given, found, _ = TYPES[name]
        x, y = f"x{i or ''}", f"y{i or ''}"
        body.append(f"{y} = {operator.format(x=x)}")
        inputs.append(f"{given}[3] {x}")
        outputs.append(f"{found}[3] {y}")
    return regions.region(folder, " \n ".join(body), ", ".join(inputs), ", ".join(outputs), opset=21)


def test_element_types(backend: Backend, resources: Resources, tmp_path: Path) -> None:
    """In one region, bound and unbound; types that numpy lacks pass the boundary bit by bit."""
    left_out = REFUSED_TYPES[backend.name].keys() | NARROWED.get(backend.name, set())
    names = [name for name in TYPES if name not in left_out]
    model, given = typed(tmp_path, *names), [TYPES[name][-1] for name in names]
    expected = regions.reference(model, *given)
    kernel = backend.compile(model, regions.F32, resources)
    _, bound, call = regions.bound(kernel, model, *given)
    call()
    for found in (bound, kernel.run(list(given))):
        arrays = [np.asarray(value) for value in found]
        assert [a.dtype for a in arrays] == [e.dtype for e in expected]
        assert dict(zip(names, (a.tolist() for a in arrays), strict=True)) == dict(
            zip(names, (e.tolist() for e in expected), strict=True)
        )


@pytest.mark.parametrize(
    ("backend", "name", "reason"),
    [(engine, *row) for engine, rows in REFUSED_TYPES.items() for row in rows.items()],
    indirect=["backend"],
)
def test_refused_element_types(backend: Backend, name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=reason):
        backend.compile(typed(tmp_path, name), regions.F32, regions.ONE_THREAD)


@but("onnxruntime")
def test_strings_are_refused(backend: Backend, tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Identity (x)", "string[2] x", "string[2] y")
    with pytest.raises(Refused):
        backend.compile(model, regions.F32, regions.ONE_THREAD)


# --- what engines refuse, and what they keep ------------------------------------------------------------------------


def test_unknown_operators_are_refused_with_their_name(backend: Backend, tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = strange.Gizmo (x)", domains=', "strange" : 1')
    with pytest.raises(Refused, match="Gizmo"):
        backend.compile(model, regions.F32, regions.ONE_THREAD)


def test_branches_run_or_are_refused(backend: Backend, tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        """
        y = If (c) <then_branch = t () => (float[4] p) { p = Relu (x) },
                    else_branch = e () => (float[4] q) { q = Neg (x) }>
        """,
        "bool c, float[4] x",
    )
    if backend.name in ("inductor", "native"):
        with pytest.raises(Refused, match="If decides at run time what is computed|no rule for If"):
            backend.compile(model, regions.F32, regions.ONE_THREAD)
        return
    x = np.float32([1, -2, 3, -4])
    assert regions.answer(backend, model, np.array(True), x)[0].tolist() == [1, 0, 3, 0]
    assert regions.answer(backend, model, np.array(False), x)[0].tolist() == [-1, 2, -3, 4]


@pytest.mark.parametrize(
    ("backend", "config", "reason"),
    [
        ("torch", "f32-nhwc", "nothing in it has images"),
        ("iree", "f32-channels-last", "without convolutions"),
        ("iree", "bf16-channels-last", "without convolutions"),
    ],
    indirect=["backend"],
)
def test_configurations_that_change_nothing_are_refused(
    backend: Backend, config: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=reason):
        backend.compile(regions.region(tmp_path, "y = Relu (x)"), KernelConfig(config), regions.ONE_THREAD)


KEPT = {
    "openvino": "*.blob",
    "inductor": "region.pt2",
    "tvm": "region.so",
    "iree": "region.vmfb",
    "native": "region.so",
}
"""Compiled code in the cache, each in a folder of its own. The other engines keep none."""


def test_the_cache_gives_the_same_answer_and_follows_the_weights(backend: Backend, tmp_path: Path) -> None:
    cache, x = tmp_path / "cache", np.ones((1, 32), np.float32)

    def run(weight: float) -> float:
        w = np.full((32, 32), weight, np.float32)  # over a kilobyte: lies in the weights file
        model = regions.region(tmp_path, "y = MatMul (x, w)", "float[1, 32] x", "float[1, 32] y", w=w)
        (y,) = regions.answer(backend, model, x, resources=Resources(threads=1, cache=cache))
        return float(y[0, 0])

    def kept() -> int:
        kept = cache.glob(f"{backend.name}-*/{KEPT[backend.name]}") if backend.name in KEPT else ()
        return len(list(kept)) if backend.name in KEPT else 1 + cache.exists()

    assert run(1.0) == 32.0
    assert run(1.0) == 32.0
    assert kept() == 1
    assert run(2.0) == 64.0
    assert kept() == (2 if backend.name in KEPT else 1)


def test_damaged_code_is_compiled_again(backend: Backend, tmp_path: Path) -> None:
    if backend.name not in KEPT:
        pytest.skip("it keeps no code")
    cache, x = tmp_path / "cache", np.ones((1, 32), np.float32)
    w = np.full((32, 32), 0.5, np.float32)
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[1, 32] x", "float[1, 32] y", w=w)

    def answer() -> float:
        (y,) = regions.answer(backend, model, x, resources=Resources(threads=1, cache=cache))
        return float(y[0, 0])

    def content(folder: Path) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in folder.iterdir()}

    assert answer() == 16.0
    (folder,) = cache.iterdir()
    sizes, seal = content(folder), (folder / ".seal").read_bytes()
    assert answer() == 16.0
    assert (content(folder), (folder / ".seal").read_bytes()) == (sizes, seal), "what was kept was found"
    for path in sorted(folder.iterdir()):
        half = tmp_path / "half"
        half.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        half.replace(path)  # what this process has loaded stays whole
    assert answer() == 16.0
    assert set(content(folder)) == set(sizes) and sealed.intact(folder)
