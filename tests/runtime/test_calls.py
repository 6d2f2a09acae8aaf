"""Calls of plans of one region, on real backends: the first one, which is checked, and later ones, which are ready, give the same
answers, and these are the caller's own."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks.call_overhead import CallSignature, signatures, whole_on
from bricolage.backends import registry
from bricolage.backends.interface import Missing
from bricolage.errors import BricolageError, WrongShape, WrongType
from bricolage.runtime.executable import Executable

SIGNATURES = {one.name: one for one in signatures()}
QUICK = ("onnxruntime", "openvino", "torch", "native")
CASES = [(name, kind) for name in QUICK for kind in SIGNATURES] + [
    *(("xla", kind) for kind in ("eight-outputs", "image")),
    *((name, kind) for name in ("tvm", "iree") for kind in ("eight-inputs", "image")),
]
SLOW = [pytest.param("inductor", kind, marks=pytest.mark.slow) for kind in ("eight-outputs", "scalars", "image")]
REFUSED = {
    ("openvino", "strings"),
    ("torch", "strings"),
    ("native", "strings"),
    ("native", "open-outputs"),
}


def executable(backend: str, model: onnx.ModelProto, **sizes: int) -> Executable:
    """A plan of one region on a backend, ready to be called."""
    status = registry.get(backend).status()
    if isinstance(status, Missing):
        pytest.skip(status.reason)
    return whole_on(backend, model, **sizes)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> made {text}')


def other(array: np.ndarray) -> np.ndarray:
    """Other values of the same type and shape."""
    return array[..., ::-1].copy() if array.ndim else array + array.dtype.type(1)


def answers(fast: Executable, values: Sequence[object]) -> list[np.ndarray]:
    """Of a call by position, as a list."""
    found = fast(*values)
    return list(found) if isinstance(found, tuple) else [found]


def assert_equal(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for one, wanted in zip(found, expected, strict=True):
        assert one.shape == wanted.shape
        if wanted.dtype.kind in "OU":
            assert one.tolist() == wanted.tolist()
        else:
            assert one.dtype == wanted.dtype
            np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("backend", "kind"), [*CASES, *SLOW])
def test_every_kind_of_signature(backend: str, kind: str) -> None:
    case = SIGNATURES[kind]
    model, values = case.model, list(case.inputs.values())
    try:
        fast = executable(backend, model)
        fast(*values)
    except BricolageError as error:
        assert (backend, kind) in REFUSED, error
        return
    evaluate = ReferenceEvaluator(model).run
    expected = evaluate(None, dict(case.inputs))
    for _ in range(2):
        assert_equal(answers(fast, values), expected)
        assert_equal(list(fast.run(case.inputs).values()), expected)
        assert_equal(answers(fast, [dict(case.inputs)]), expected)
    check_ownership(fast, values, expected, evaluate)
    check_layouts(fast, values, expected)
    with pytest.raises((WrongType, WrongShape)):
        fast(*[np.zeros((3, *value.shape), np.complex64) for value in values])
    assert_equal(answers(fast, values), expected)


def check_ownership(
    fast: Executable,
    values: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    evaluate: Callable[..., Sequence[np.ndarray]],
) -> None:
    """A later call leaves earlier answers alone, and who writes to an answer changes nothing else."""
    kept = [value.copy() for value in values]
    first = answers(fast, values)
    changed = [other(value) for value in values]
    names = [spec.name for spec in fast.inputs]
    assert_equal(answers(fast, changed), evaluate(None, dict(zip(names, changed, strict=True))))
    assert_equal(first, expected)
    for answer in first:
        assert answer.flags.writeable
        answer[...] = "!" if answer.dtype.kind == "O" else 7
    assert all(np.array_equal(value, before) for value, before in zip(values, kept, strict=True))
    assert_equal(answers(fast, values), expected)


def check_layouts(fast: Executable, values: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Arrays that are not contiguous, in the other byte order, read-only, or not aligned."""

    def strided(array: np.ndarray) -> np.ndarray:
        wide = np.zeros((*array.shape, 2), array.dtype)
        wide[..., 0] = array
        return wide[..., 0]

    def swapped(array: np.ndarray) -> np.ndarray:
        return array.astype(array.dtype.newbyteorder(">"))

    def read_only(array: np.ndarray) -> np.ndarray:
        copy = array.copy()
        copy.flags.writeable = False
        return copy

    def unaligned(array: np.ndarray) -> np.ndarray:
        if array.dtype == object:
            return array
        raw = np.zeros(array.nbytes + 1, np.uint8)
        moved = raw[1:].view(array.dtype).reshape(array.shape)
        moved[...] = array
        return moved

    for layout in (strided, swapped, read_only, unaligned):
        for _ in range(2):
            assert_equal(answers(fast, [layout(value) for value in values]), expected)


@pytest.mark.parametrize("backend", QUICK)
@pytest.mark.parametrize("kind", ["eight-inputs", "open-outputs", "image"])
def test_torch_tensors_come_back_as_such(backend: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    if (backend, kind) in REFUSED:
        pytest.skip("it refuses the model")
    case = SIGNATURES[kind]
    fast = executable(backend, case.model)
    expected = ReferenceEvaluator(case.model).run(None, dict(case.inputs))
    tensors = [torch.from_numpy(value).requires_grad_() for value in case.inputs.values()]
    for _ in range(2):
        found = answers(fast, tensors)
        assert all(isinstance(one, torch.Tensor) for one in found)
        assert_equal([np.asarray(one) for one in found], expected)
    assert isinstance(answers(fast, list(case.inputs.values()))[0], np.ndarray)


@pytest.mark.parametrize("backend", QUICK)
@pytest.mark.parametrize("size", [8, 1 << 20])
def test_answers_that_could_be_views_are_copies(backend: str, size: int) -> None:
    """Of an input, of a constant, and of each other; small and large."""
    model = parsed(
        f"(float[{size}] x) => (float[2,{size // 2}] y, float[{size}] z, float[{size // 2},2] w)"
        " { y = Reshape (x, rows) z = Relu (x) w = Reshape (z, columns) }"
    )
    model.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.array([2, size // 2]), "rows"),
            onnx.numpy_helper.from_array(np.array([size // 2, 2]), "columns"),
        ]
    )
    x = np.linspace(-1, 1, size, dtype=np.float32)
    try:
        fast = executable(backend, model)
        fast(x)
    except BricolageError as error:
        assert backend == "openvino", error  # one of several outputs is an input unchanged
        return
    evaluate = ReferenceEvaluator(model).run
    check_ownership(fast, [x], evaluate(None, {"x": x}), evaluate)
    found = answers(fast, [x])
    assert not any(np.shares_memory(one, x) for one in found)
    found[1][...] = 5
    assert_equal([found[0], found[2]], [x.reshape(2, -1), np.maximum(x, 0).reshape(-1, 2)])


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("kind", ["open-outputs", "image"])
def test_callers_of_several_threads_do_not_mix(backend: str, kind: str) -> None:
    case = SIGNATURES[kind]
    fast = executable(backend, case.model)
    (x,) = case.inputs.values()
    inputs = [np.roll(x, number) for number in range(4)]
    evaluate = ReferenceEvaluator(case.model).run
    expected = [evaluate(None, {"x": one}) for one in inputs]
    failures: list[BaseException] = []

    def call(number: int) -> None:
        try:
            for found in [answers(fast, [inputs[number]]) for _ in range(5)]:
                assert_equal(found, expected[number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("kind", ["one-input", "open-outputs", "image"])
def test_answers_outlive_the_executable(backend: str, kind: str) -> None:
    case = SIGNATURES[kind]
    fast = executable(backend, case.model)
    found = answers(fast, list(case.inputs.values()))
    del fast
    gc.collect()
    assert_equal(found, ReferenceEvaluator(case.model).run(None, dict(case.inputs)))


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])  # OpenVINO answers such a call
def test_a_call_that_fails_leaves_later_ones_alone(backend: str) -> None:
    """Sizes that an input names, and that do not fit, are found when it runs."""
    model = parsed("(float[4,6] x, int64[2] s) => (float[rows,columns] y) { r = Relu (x) y = Reshape (r, s) }")
    fast = executable(backend, model)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for rows, columns in ((8, 3), (3, 8), (12, 2)):
        sizes = np.array([rows, columns])
        assert_equal([fast(x, sizes)], [x.reshape(rows, columns)])
        with pytest.raises(Exception, match=r"."):
            fast(x, np.array([5, 7]))
        assert_equal([fast(x, sizes)], [x.reshape(rows, columns)])


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_answers_that_are_views_at_some_values_only_are_copies(backend: str, size: int) -> None:
    """Sizes that an input names decide whether anything is repeated."""
    model = parsed(f"(float[1,{size}] x, int64[2] s) => (float[rows,columns] y) {{ y = Expand (x, s) }}")
    fast = executable(backend, model)
    x = np.ones((1, size), np.float32)
    for rows in (3, 1, 3, 1):
        found = np.asarray(fast(x, np.array([rows, size])))
        np.testing.assert_array_equal(found, np.ones((rows, size), np.float32))
        found[...] = 5
        assert x.max() == 1


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_open_outputs_of_one_call_after_another_have_sizes_of_their_own(backend: str) -> None:
    model = parsed("(float[a,b] x) => (int64[2,found] y) { r = Relu (x) y = NonZero (r) }")
    fast = executable(backend, model, a=2, b=3)
    for shape, count in (((2, 3), 6), ((2, 3), 0), ((4, 2), 3), ((2, 3), 1)):
        x = np.zeros(shape, np.float32)
        x.reshape(-1)[:count] = 1
        assert_equal([fast(x)], [np.array(np.nonzero(x))])


# --- checks are made once for each signature ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(SIGNATURES))
def test_arguments_are_checked_once(kind: str, checks: list[object]) -> None:
    case = SIGNATURES[kind]
    fast = executable("onnxruntime", case.model)
    for _ in range(3):
        fast(*case.inputs.values())
        fast(dict(case.inputs))
        fast(**case.inputs)
        fast.run(dict(case.inputs))
        if len(case.inputs) > 1:
            fast(list(case.inputs.values()))
    assert len(checks) == 1


def test_numbers_and_torch_tensors_are_checked_once(checks: list[object]) -> None:
    torch = pytest.importorskip("torch")
    case = SIGNATURES["scalars"]
    fast = executable("onnxruntime", case.model)
    x = case.inputs["x"]
    for k, s in ((16000, 0.5), (np.int64(16000), np.float32(0.5)), (torch.tensor(16000), 0.5)):
        y, n = fast(x, k, s)
        np.testing.assert_allclose(np.asarray(y), x * np.float32(0.5) + 16000)
        assert int(n) == 32000
    assert len(checks) == 1
    for wrong in (1 << 70, 0.5, np.float32(1), "16000"):
        with pytest.raises(WrongType):
            fast(x, wrong, 0.5)


def test_one_number_is_given_for_one_element(checks: list[object]) -> None:
    fast = executable("onnxruntime", parsed("(float[1,1] x) => (float[1,1] y) { y = Neg (x) }"))
    for x in (2.0, np.float32(2), np.array(2, np.float32), np.full((1, 1), 2, np.float32)):
        np.testing.assert_array_equal(fast(x), [[-2]])
    assert len(checks) == 1


def test_texts_of_other_lengths_are_no_other_signature(checks: list[object]) -> None:
    case = SIGNATURES["strings"]
    fast = executable("onnxruntime", case.model)
    for length in (1, 5, 9):
        words = np.array(["w" * length] * 16)
        assert fast(words).tolist() == ["w" * 2 * length] * 16
    assert len(checks) == 1


def test_what_has_a_default_is_checked_where_it_is_given(checks: list[object]) -> None:
    model = parsed("(float[4] x, float[4] w) => (float[4] y) { y = Add (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(4, 10, np.float32), "w"))
    fast = executable("onnxruntime", model)
    x, w = np.ones(4, np.float32), np.full(4, 5, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(fast(x), x + 10)
        np.testing.assert_array_equal(fast(x=x), x + 10)
    assert len(checks) == 1
    np.testing.assert_array_equal(fast(x=x, w=w), x + w)
    np.testing.assert_array_equal(fast(x), x + 10)
    assert len(checks) == 2


def test_sequences_are_checked_once(checks: list[object]) -> None:
    model = parsed("(seq(float[2]) s, int64 i) => (float[2] y) { y = SequenceAt (s, i) }")
    fast = executable("onnxruntime", model)
    members = [np.array(one, np.float32) for one in ([1, 2], [3, 4])]
    for place in (0, 1):
        np.testing.assert_array_equal(fast(members, np.array(place)), members[place])
    assert len(checks) == 1


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
@pytest.mark.parametrize(
    ("kind", "most"), [("one-input", 40), ("eight-inputs", 100), ("open-outputs", 40), ("strings", 40), ("image", 40)]
)
def test_a_call_makes_few_calls_in_python(kind: str, most: int) -> None:
    """Functions that a ready call enters, of Python and of C, ONNX Runtime's own wrapper included."""
    case: CallSignature = SIGNATURES[kind]
    fast, inputs = executable("onnxruntime", case.model), dict(case.inputs)
    fast(inputs)
    fast(inputs)
    entered: list[str] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            entered.append(frame.f_code.co_name if event == "call" else getattr(argument, "__name__", "?"))

    sys.setprofile(count)
    try:
        fast(inputs)
    finally:
        sys.setprofile(None)
    assert len(entered) <= most, entered
