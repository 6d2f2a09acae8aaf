from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.work.implementation import HOST, Assignment, Endpoint, Implementation, KernelConfig, Scalar, named

names = st.text("abcdefgh_", min_size=1, max_size=6)
scalars = st.one_of(st.booleans(), st.integers(-(1 << 60), 1 << 60), st.floats(allow_nan=False), st.text(max_size=8))
configs = st.builds(lambda name, own: KernelConfig(name).tuned(own), names, st.dictionaries(names, scalars, max_size=5))


@given(configs)
def test_a_configuration_survives_json_with_the_types_of_its_parameters(config: KernelConfig) -> None:
    back = decode(KernelConfig, json.loads(json.dumps(encode(config))))
    assert back == config and hash(back) == hash(config) and back.text == config.text
    assert [type(value) for _, value in back.parameters] == [type(value) for _, value in config.parameters]


def test_assignments_survive_json() -> None:
    config = KernelConfig("bf16", (("block", 8), ("layout", "nhwc"), ("unroll", True)))
    one = Assignment(0b101, Implementation("native", config, "cpu:0-1"))
    assert decode(Assignment, json.loads(json.dumps(encode(one)))) == one


@given(st.dictionaries(names, scalars, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_what_a_tuner_gives_does_not_matter(parameters: dict[str, Scalar], rng) -> None:
    shuffled = list(parameters.items())
    rng.shuffle(shuffled)
    one, other = KernelConfig().tuned(parameters), KernelConfig().tuned(dict(shuffled))
    assert one == other and hash(one) == hash(other) and one.text == other.text
    assert one.base == KernelConfig() and one.base.tuned(parameters) == one


@pytest.mark.parametrize("parameters", [(("b", 1), ("a", 2)), (("a", 1), ("a", 2))])
def test_parameters_out_of_order_are_refused(parameters: tuple[tuple[str, Scalar], ...]) -> None:
    with pytest.raises(ValueError, match="ascending order of distinct names"):
        KernelConfig("f32", parameters)
    with pytest.raises(DecodeError, match="ascending order"):
        decode(KernelConfig, {"name": "f32", "parameters": [list(one) for one in parameters]})


@given(st.lists(configs, max_size=6))
def test_texts_tell_configurations_apart(found: list[KernelConfig]) -> None:
    assert len({config.text for config in found}) == len({(c.name, json.dumps(c.parameters)) for c in found})


def test_how_configurations_read() -> None:
    assert (KernelConfig("bf16").text, str(KernelConfig("bf16"))) == ("bf16", "bf16")
    tuned = KernelConfig("bf16").tuned({"width": 4, "block": 8})
    assert tuned.text == 'bf16{"block": 8, "width": 4}'
    shown = str(tuned)
    assert shown.startswith("bf16 tuned ") and len(shown) == len("bf16 tuned ") + 4
    assert shown != str(tuned.base.tuned({"width": 4, "block": 16}))
    assert named("f32", "bf16") == (KernelConfig("f32"), KernelConfig("bf16"))


def test_implementations_read_with_their_device_unless_it_is_the_host() -> None:
    here, there = Implementation("torch"), Implementation("torch", KernelConfig("bf16"), "cpu:0-1")
    assert (str(here), str(there)) == ("torch f32", "torch bf16 on cpu:0-1")
    assert here.endpoint == Endpoint("torch", HOST) and there.endpoint == Endpoint("torch", "cpu:0-1")
    assert (str(here.endpoint), str(there.endpoint)) == ("torch", "torch on cpu:0-1")


@given(st.lists(st.builds(Implementation, names, configs, names), max_size=6))
def test_transfers_do_not_depend_on_configurations(found: list[Implementation]) -> None:
    assert len({one.endpoint for one in found}) == len({(one.backend, one.device) for one in found})


def test_slices_of_bytes_are_no_products_of_bytes() -> None:
    """int8x9 has float32's accuracy; int8 rounds."""
    assert KernelConfig("int8").in_bytes and KernelConfig("int8-bf16").in_bytes and KernelConfig("int8-blocks").in_bytes
    for name, products in (("int8x9", 9), ("int8x6", 6), ("int8", 0), ("int8-bf16", 0), ("bf16x6", 0), ("f32", 0)):
        assert KernelConfig(name).slice_products == products
        assert not (products and KernelConfig(name).in_bytes)
