"""What callers pass, and what becomes of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bricolage.errors import MissingInput, UnknownInput, WrongShape, WrongType
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.signature import by_position_and_name, collect

MATRIX, SCALAR, ONE = TensorSpec("x", "float32", (2, 3)), TensorSpec("s", "float32", ()), TensorSpec("o", "int64", (1,))
VALUES = [[1, 2, 3], [4, 5, 6.5]]


def collected(spec: TensorSpec, value: Any) -> np.ndarray:
    array = collect([spec], [value], {})[spec.name]
    assert isinstance(array, np.ndarray) and array.dtype.name == spec.dtype
    return array


def given(*args: Any, **named: Any) -> dict[str, Any]:
    inputs = [MATRIX, SCALAR]
    return collect(inputs, *by_position_and_name(inputs, args, named))


def test_the_only_argument_may_stand_for_all() -> None:
    x, s = np.ones((2, 3), np.float32), np.float32(2)
    for found in (given(x, s), given(x, s=s), given(x=x, s=s), given({"x": x, "s": s}), given([x, s]), given((x, s))):
        assert np.array_equal(found["x"], x) and found["s"] == 2
    with pytest.raises(UnknownInput, match="'z'"):
        given({"x": x, "s": s, "z": x})
    with pytest.raises(MissingInput, match="'s'"):
        given({"x": x})


def test_lists_of_numbers_become_the_input_s_type() -> None:
    assert collected(MATRIX, VALUES).tolist() == VALUES
    assert collected(MATRIX, tuple(map(tuple, VALUES))).tolist() == VALUES
    assert collected(MATRIX, [np.arange(3, dtype=np.float32)] * 2).tolist() == [[0, 1, 2]] * 2
    assert collected(TensorSpec("i", "int8", (2,)), [1, -128]).tolist() == [1, -128]
    assert collected(TensorSpec("b", "bool", (2,)), [True, False]).tolist() == [True, False]
    half = collected(TensorSpec("h", "bfloat16", (2,)), [1, 0.5])
    assert half.dtype == ml_dtypes.bfloat16 and half.astype(float).tolist() == [1, 0.5]
    assert collect([TensorSpec("t", "str", (2,))], [["a", "b"]], {})["t"].tolist() == ["a", "b"]


def test_one_number_is_one_number() -> None:
    for value in (3, np.array(3.0, np.float32), np.float32(3)):
        assert collected(SCALAR, value).shape == () and collected(SCALAR, value) == 3
    assert collected(ONE, 7).tolist() == collected(ONE, np.int64(7)).tolist() == [7]
    with pytest.raises(WrongShape):
        collected(MATRIX, 3)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (MATRIX, np.ones((2, 3))),  # an array has its type, and it is another one
        (TensorSpec("i", "int8", (2,)), [1, 300]),
        (TensorSpec("i", "int64", (2,)), [1, 0.5]),
        (TensorSpec("i", "uint8", (1,)), -1),
        (TensorSpec("b", "bool", (1,)), [1]),
        (MATRIX, ["a", "b"]),
        (MATRIX, object()),
        (MATRIX, None),
    ],
    ids=lambda value: "an object" if type(value) is object else str(value)[:30],
)
def test_what_the_type_does_not_hold_is_refused(spec: TensorSpec, value: Any) -> None:
    with pytest.raises(WrongType, match=f"'{spec.name}'"):
        collected(spec, value)


def test_lists_of_unequal_length_are_no_tensor() -> None:
    with pytest.raises(WrongShape, match="unequal length"):
        collected(MATRIX, [[1, 2, 3], [4]])


def test_a_sequence_of_tensors_stays_one() -> None:
    spec = TensorSpec("q", "Sequence(Tensor(FLOAT))", None)
    value = [np.ones(2, np.float32), np.ones(3, np.float32)]
    assert collect([spec], [value], {})["q"] is value


def test_torch_tensors_of_any_rank() -> None:
    torch = pytest.importorskip("torch")
    assert collected(MATRIX, torch.ones(2, 3)).shape == (2, 3) and collected(SCALAR, torch.tensor(2.0)) == 2
    assert collected(TensorSpec("h", "bfloat16", (2,)), torch.ones(2, dtype=torch.bfloat16)).shape == (2,)
