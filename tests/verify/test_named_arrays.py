from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bricolage.verify.named_arrays import digest, load_values, save_tensors

TENSORS = {
    "file": np.arange(6, dtype=np.float32).reshape(2, 3),  # the name of numpy.savez's own parameter
    "a/b:0": np.array(3.0),
    "half": np.array([[1.5, -2.0]], dtype=ml_dtypes.bfloat16),
    "scalar": np.array(0.5, dtype=ml_dtypes.bfloat16),
    "eight": np.array([1.0, 2.0], dtype=ml_dtypes.float8_e4m3fn),
    "eight, a float to numpy": np.array([1.0, 2.0], dtype=ml_dtypes.float8_e5m2),
    "four": np.array([-3, 2], dtype=ml_dtypes.int4),
    "words": np.array(["", "größer"], dtype=object),
    "none": np.zeros((0, 4), dtype=ml_dtypes.bfloat16),
    "yes": np.array([True, False]),
}


def test_every_type_and_name_comes_back(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t.npz", TENSORS)
    back = load_values(tmp_path / "t.npz")
    assert list(back) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype and back[name].shape == tensor.shape
        assert np.array_equal(back[name], tensor)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t.npz", TENSORS)
    assert list(load_values(tmp_path / "t.npz", ["yes"])) == ["yes"]
    with pytest.raises(KeyError):
        load_values(tmp_path / "t.npz", ["absent"])


def test_plain_npz_files_are_read_and_pickles_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", x=np.ones(3))
    assert load_values(tmp_path / "plain.npz")["x"].sum() == 3
    np.savez(tmp_path / "evil.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_values(tmp_path / "evil.npz")


def test_sequences_and_empty_optionals_come_back(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t.npz", {"many": [np.ones(2), np.zeros((1, 3), np.int8)], "empty": [], "none": None})
    back = load_values(tmp_path / "t.npz")
    assert isinstance(back["many"], list) and [item.shape for item in back["many"]] == [(2,), (1, 3)]
    assert back["empty"] == [] and back["none"] is None


def test_a_digest_tells_values_apart() -> None:
    """By name, type, shape and value, of sequences as well; in no order."""
    told = {"a": np.zeros(6, np.float32), "s": [np.ones(2), None]}
    others = [
        {**told, "a": np.zeros((2, 3), np.float32)},
        {**told, "a": np.zeros(6, np.int32)},
        {**told, "a": np.array([0, 0, 0, 0, 0, 1], np.float32)},
        {**told, "s": [np.ones(2)]},
        {**told, "s": [None, np.ones(2)]},
        {"b": told["a"], "s": told["s"]},
        {**told, "w": np.array(["x"], object)},
        {**told, "w": np.array(["y"], object)},
    ]
    assert digest("m", dict(reversed(told.items()))) == digest("m", told) != digest("n", told)
    assert len({digest("m", one) for one in [told, *others]}) == len(others) + 1


def test_maps_come_back(tmp_path: Path) -> None:
    maps = {"scores": [{0: 0.25, 7: 0.75}, {0: 1.0, 7: 0.0}], "words": {"a": 1.5}}
    save_tensors(tmp_path / "t.npz", maps)
    assert load_values(tmp_path / "t.npz") == maps
    assert digest("", maps) != digest("", {**maps, "words": {"b": 1.5}})
