"""Words for changes of a training step."""

from __future__ import annotations

import pytest

from bricolage.errors import BadVariant
from bricolage.train.predict.variant import Variant, parse_variant, usual
from bricolage.train.spec import StepSpec


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
    ],
)
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(BadVariant):
        parse_variant(text)


def test_what_is_asked_about_by_default_suits_the_batch() -> None:
    spec = StepSpec("a.py:net", "a.py:batch", batch_size=3)
    names = {one.name for one in usual(spec)}
    assert "batch=6" in names and "amp" in names and "micro=2" not in names
