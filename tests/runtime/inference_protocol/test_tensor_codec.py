"""Tensors as bytes and as plain values: there and back, and what is no tensor."""

from __future__ import annotations

import asyncio
import struct

import numpy as np
import pytest

from bricolage.errors import AnswerTooLate, BadRequest, BadTensor, NotInJson, UnknownOutput
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.inference_protocol.datatypes import BINARY_ONLY, dtype_of
from bricolage.runtime.inference_protocol.infer_request import ModelSignature
from bricolage.runtime.inference_protocol.tensor_codec import decode_bytes, decode_values, encode_bytes, encode_values
from tests.runtime.inference_protocol.conftest import TYPES

NUMBERS = sorted(TYPES)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 1, 3)])
def test_numbers_survive(kind: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype_of(kind))
    back = decode_bytes("x", kind, shape, bytes(encode_bytes(array, kind)))
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype and back.shape == shape
    if kind in BINARY_ONLY:
        with pytest.raises(NotInJson, match="in binary only"):
            encode_values("x", array, kind)
        with pytest.raises(BadTensor, match="in binary only"):
            decode_values("x", kind, shape, array.reshape(-1).tolist())
        return
    values = np.asarray(encode_values("x", array, kind)).tolist()
    again = decode_values("x", kind, shape, values)
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype and again.shape == shape


def test_transposed_arrays_travel_row_by_row() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    np.testing.assert_array_equal(decode_bytes("x", "INT32", (3, 2), bytes(encode_bytes(array, "INT32"))), array)


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT64", "UINT64"])
def test_integers_at_their_ends(kind: str) -> None:
    limits = np.iinfo(dtype_of(kind))
    ends = [int(limits.min), int(limits.max)]
    assert decode_values("x", kind, (2,), ends).tolist() == ends
    for outside in (limits.min - 1, limits.max + 1, 0.5, None, "1", [1]):
        with pytest.raises(BadTensor):
            decode_values("x", kind, (2,), [0, outside])


def test_truth_values_are_0_and_1() -> None:
    np.testing.assert_array_equal(decode_bytes("x", "BOOL", (3,), b"\0\1\2"), [False, True, True])
    with pytest.raises(BadTensor, match="not BOOL"):
        decode_values("x", "BOOL", (1,), [1])


def test_strings() -> None:
    array = np.array([["a", ""], ["grün", "\0"]], object)
    data = bytes(encode_bytes(array, "BYTES"))
    np.testing.assert_array_equal(decode_bytes("x", "BYTES", (2, 2), data), array)
    np.testing.assert_array_equal(decode_values("x", "BYTES", (2, 2), encode_values("x", array, "BYTES")), array)
    np.testing.assert_array_equal(decode_values("x", "BYTES", (2, 2), array.tolist()), array)
    for broken in (data[:-1], data + b"\0", data + struct.pack("<I", 0), b"", struct.pack("<I", 1 << 31)):
        with pytest.raises(BadTensor, match="are not 4 strings"):
            decode_bytes("x", "BYTES", (2, 2), broken)
    with pytest.raises(BadTensor, match="not UTF-8"):
        decode_bytes("x", "BYTES", (1,), struct.pack("<I", 1) + b"\xff")
    with pytest.raises(BadTensor, match="not a string"):
        decode_values("x", "BYTES", (2,), ["a", 3])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_without_a_spelling(value: float) -> None:
    with pytest.raises(NotInJson, match="NaN or infinity"):
        encode_values("y", np.array([1, value], np.float32), "FP32")


def test_outputs_that_a_request_asks_for() -> None:
    signature = ModelSignature("m", (), (), (TensorSpec("y", "float32", (1,)),))
    signature.check_outputs(["y"])
    with pytest.raises(UnknownOutput, match="It returns: y"):
        signature.check_outputs(["z"])
    with pytest.raises(BadRequest, match="twice"):
        signature.check_outputs(["y", "y"])


def test_an_error_says_its_limit() -> None:
    async def late() -> None:
        raise AnswerTooLate(limit="2 s")

    with pytest.raises(AnswerTooLate, match="no answer within 2 s"):
        asyncio.run(late())
