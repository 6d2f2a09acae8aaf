"""The benchmark of generating text, on a small file: each of our ways writes as many tokens as it is asked for, and times them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generate import Kernels, Product, list_makers, list_prompts
from benchmarks.real.packages import Unavailable
from tests.frontends.decoders import tiny_decoders
from tests.needed import needs

for library_name in ("gguf", "tokenizers", "transformers"):
    needs(library_name)


def test_our_ways_are_timed_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    file = tiny_decoders.write_gguf(tiny_decoders.torch_decoder("llama"), "llama", tmp_path / "tiny.gguf")
    prompts = list_prompts(file, [8, 20])
    assert [len(prompt) for prompt in prompts.values()] == [8, 20, 8, 20]
    kernels = Kernels(file, 1, "highest")
    for writer in (kernels, Product(file, 1, "highest", texts=2)):
        timed = writer.write(prompts["prose", 8], 5)
        assert timed.first_s > 0 and timed.tokens_per_s > 0
    logits = kernels.logits(prompts["prose", 8])
    assert logits.shape == (8, tiny_decoders.VOCABULARY)
    with pytest.raises(Unavailable, match="--onnxruntime-genai"):
        list_makers(file, 1, 64, "")["onnxruntime genai"]()
