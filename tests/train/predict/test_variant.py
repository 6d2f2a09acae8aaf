"""Words for changes of a training step."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bricolage.errors import BadVariant
from bricolage.train.predict.variant import (
    CHANGES,
    MOST_SAMPLES,
    Variant,
    default_variants,
    forms,
    parse_variant,
)
from bricolage.train.step.spec import StepSpec
from tests.train.predict.changes_table import changes_table


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("", Variant()),
        ("amp", Variant(amp=True)),
        ("batch=64,amp", Variant(batch_size=64, amp=True)),
        ("fused", Variant(optimiser="fused")),
        ("foreach , micro=4", Variant(optimiser="foreach", micro_batches=4)),
        ("recompute", Variant(recompute=("all",))),
        ("recompute=a.0+a.1", Variant(recompute=("a.0", "a.1"))),
        ("freeze=embed", Variant(freeze=("embed",))),
        ("workers=2,bucket=0.5,bandwidth=1.25", Variant(workers=2, bucket_mb=0.5, gbytes=1.25)),
        ("channels-last,threads=1", Variant(channels_last=True, threads=1)),
        ("fuse=8,batch=16", Variant(models=8, batch_size=16)),
        ("stages=2,micro=4,fused,bandwidth=10", Variant(stages=2, micro_batches=4, optimiser="fused", gbytes=10.0)),
    ],
)
def test_words_and_back(text: str, variant: Variant) -> None:
    assert parse_variant(text) == variant
    assert parse_variant("" if variant == Variant() else variant.name) == variant
    assert (variant.name == "as it is") == (variant == Variant())


@pytest.mark.parametrize(
    "text",
    [
        "quick",
        "batch",
        "batch=",
        "batch=x",
        "batch=0",
        "amp,amp",
        "foreach,fused",
        "amp=2",
        "bucket=1",
        "workers=0",
        "bandwidth=1",
        "fuse=0",
        "fuse=8,amp",
        "fuse=8,workers=2",
        "stages=2",
        "stages=4,micro=2",
        "stages=2,micro=2,recompute",
        "stages=2,micro=2,workers=2",
        "batch=2000000",
        "workers=2,bucket=nan",
        "freeze=a,freeze=b",
    ],
)
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(BadVariant):
        parse_variant(text)


def test_default_variants_suit_the_batch() -> None:
    spec = StepSpec("a.py:net", "a.py:batch", batch_size=3)
    names = {one.name for one in default_variants(spec)}
    assert "batch=6" in names and "amp" in names and "micro=2" not in names
    largest = StepSpec("a.py:net", "a.py:batch", batch_size=MOST_SAMPLES)
    assert not any(one.batch_size for one in default_variants(largest))


@given(st.data())
def test_any_variant_is_read_back(data: st.DataObject) -> None:
    values = {
        "batch_size": st.integers(1, MOST_SAMPLES),
        "amp": st.just(True),
        "optimiser": st.sampled_from(["foreach", "fused"]),
        "recompute": st.sampled_from([("all",), ("a.0", "b")]),
        "micro_batches": st.integers(1, 1 << 16),
        "freeze": st.just(("embed", "head")),
        "channels_last": st.just(True),
        "threads": st.integers(1, 4096),
        "workers": st.integers(1, 4096),
        "bucket_mb": st.floats(1e-6, 1e6),
        "models": st.integers(1, 4096),
        "stages": st.integers(1, 4096),
        "gbytes": st.floats(1e-9, 1e9),
    }
    assert values.keys() == CHANGES.keys()
    names = data.draw(st.sets(st.sampled_from(sorted(values)), max_size=4))
    try:
        variant = Variant(**{name: data.draw(values[name]) for name in sorted(names)})
    except BadVariant:
        assume(False)
    assert parse_variant("" if variant == Variant() else variant.name) == variant


def test_help_and_table_have_every_change() -> None:
    for change in CHANGES.values():
        for form in change.forms:
            assert form in forms().split(", ") and f"`{form}`" in changes_table()
        assert change.meaning in changes_table()


def test_what_one_process_runs_is_divided_by_nothing() -> None:
    asked = parse_variant("stages=2,micro=4,fused,bandwidth=10,threads=1")
    assert asked.of_one_process() == parse_variant("micro=4,fused")
    assert parse_variant("fuse=8").of_one_process() == parse_variant("fuse=8")
