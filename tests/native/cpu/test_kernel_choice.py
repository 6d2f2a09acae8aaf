"""Choices of kernels as flat parameters and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.native.cpu.kernel_choice import DEFAULT, MOST_BYTES, GemmConfig, KernelChoice, from_parameters
from bricolage.work.implementation import Scalar

sizes = st.none() | st.integers(1, MOST_BYTES)
gemms = st.builds(
    GemmConfig,
    mc_bytes=sizes,
    kc_bytes=sizes,
    parallel=st.sampled_from([None, "m", "n"]),
    prefetch=st.sampled_from([None, True, False]),
)
choices = st.builds(KernelChoice, tile=st.sampled_from([None, 0, 2, 4]), gemm=gemms)


def to_parameters(choices: Mapping[int, KernelChoice]) -> tuple[tuple[str, Scalar], ...]:
    """The inverse of `from_parameters`, sorted by key."""
    found: list[tuple[str, Scalar]] = []
    for number, choice in choices.items():
        values = {
            "tile": choice.tile,
            "pieces": choice.pieces,
            **{one.name: getattr(choice.gemm, one.name) for one in fields(GemmConfig)},
        }
        found += [(f"{number}.{name}", value) for name, value in values.items() if value is not None]
    return tuple(sorted(found))


@given(st.dictionaries(st.integers(0, 2000), choices))
def test_they_come_back(chosen: dict[int, KernelChoice]) -> None:
    written = to_parameters(chosen)
    assert from_parameters(written) == {number: choice for number, choice in chosen.items() if choice != DEFAULT}
    assert list(written) == sorted(written) and len(dict(written)) == len(written)
    assert all(isinstance(value, (int, float, bool, str)) for _, value in written)


@given(st.dictionaries(st.integers(0, 20), choices))
def test_they_survive_json(chosen: dict[int, KernelChoice]) -> None:
    written = to_parameters(chosen)
    again = tuple((key, value) for key, value in json.loads(json.dumps(written)))
    assert again == written
    assert to_parameters(from_parameters(again)) == written


@given(st.text(max_size=12), st.integers() | st.floats() | st.booleans() | st.text(max_size=3))
def test_what_is_read_is_what_would_be_written(key: str, value: Scalar) -> None:
    try:
        read = from_parameters(((key, value),))
    except ValueError:
        return
    assert to_parameters(read) == ((key, value),)


def test_keys_are_kernels_and_names() -> None:
    chosen = {
        3: KernelChoice(2, gemm=GemmConfig(mc_bytes=1 << 17, parallel="n")),
        12: KernelChoice(gemm=GemmConfig(prefetch=False)),
    }
    assert to_parameters(chosen) == (
        ("12.prefetch", False),
        ("3.mc_bytes", 1 << 17),
        ("3.parallel", "n"),
        ("3.tile", 2),
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mc_bytes", 1024),
        ("3.nc_bytes", 1024),
        ("3.", 1024),
        ("-3.mc_bytes", 1024),
        ("03.mc_bytes", 1024),
        ("³.mc_bytes", 1024),
        ("3.mc_bytes.x", 1024),
        ("3.mc_bytes", 0),
        ("3.mc_bytes", True),
        ("3.mc_bytes", 1024.0),
        ("3.kc_bytes", MOST_BYTES + 1),
        ("3.tile", 3),
        ("3.tile", False),
        ("3.parallel", "k"),
        ("3.prefetch", 1),
    ],
)
def test_what_is_refused(key: str, value: Scalar) -> None:
    with pytest.raises(ValueError, match="parameter"):
        from_parameters(((key, value),))


def test_nothing_is_said_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        from_parameters((("3.tile", 2), ("3.tile", 2)))
