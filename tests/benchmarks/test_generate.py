"""The benchmark of generating text, on a small file: each of our ways writes as many tokens as it is asked for, and times them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.decode.generation_rows import GREEDY, Row, list_bars
from benchmarks.decode.writers import Clients, Kernels, Product, Server
from benchmarks.generate import count_reference_tokens, list_makers, list_prompts
from benchmarks.real.packages import Unavailable
from bricolage.base.options import available_cores
from bricolage.frontends.decoders.decoder_files import read_decoder
from tests.frontends.decoders import tiny_decoders
from tests.needed import needs

for library_name in ("gguf", "tokenizers", "transformers"):
    needs(library_name)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return tiny_decoders.write_gguf(tiny_decoders.torch_decoder("llama"), "llama", folder / "tiny.gguf")


def test_our_ways_are_timed_and_judged(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    prompts = list_prompts(file, [8, 20])
    assert [len(prompt) for prompt in prompts.values()] == [8, 20, 8, 20]
    kernels = Kernels(file, 1, "highest")
    for writer in (kernels, Product(file, 1, "highest", texts=2)):
        timed = writer.write(prompts["prose", 8], 5)
        assert timed.first_s > 0 and timed.tokens_per_s > 0
    logits = kernels.logits(prompts["prose", 8])
    assert logits.shape == (8, tiny_decoders.VOCABULARY)
    tokens = kernels.continue_greedily(prompts["prose", 8], 20)
    decoder = read_decoder(file)
    assert count_reference_tokens(decoder, prompts["prose", 8], tokens) == 20
    wrong = [*tokens[:5], (tokens[5] + 1) % tiny_decoders.VOCABULARY]
    assert count_reference_tokens(decoder, prompts["prose", 8], wrong) == 5
    given = SimpleNamespace(threads=1, context=[8], tokens=8, part=["http"], onnxruntime_genai="")
    makers = list_makers(file, given, Server(file, 1))
    with pytest.raises(Unavailable, match="--onnxruntime-genai"):
        makers["onnxruntime genai"]()
    assert "bricolage highest http" in makers


def test_clients_write_over_http(file: Path) -> None:
    for name in ("openai", "fastapi", "fastapi_openai_compat", "uvicorn", "grpc"):
        needs(name)
    server = Server(file, 1)
    try:
        for count in (1, 3):
            timed = Clients(server, count).write([5, 6, 7], 12)
            assert timed.first_s > 0 and timed.tokens_per_s > 0
    finally:
        server.close()


def test_bars_are_of_rows_that_are_there() -> None:
    ours = Row("bricolage low kernels", "q4_1", 16, prompt_tokens_per_s=9.0, tokens_per_s=30.0, kl=0.01)
    peer = replace(ours, contestant="llama.cpp", tokens_per_s=12.0, kl=0.02)
    highest = replace(ours, contestant="bricolage highest kernels", kl=2e-6, greedy=GREEDY)
    bars = {bar.name: bar for bar in list_bars([ours, peer, highest, replace(peer, format="q4_0")])}
    assert bars["steps at 16 × best peer"].value == 2.5 and bars["steps at 16 × best peer"].holds
    assert bars["KL of low, to llama.cpp's"].holds and not bars["KL of highest"].holds
    assert bars[f"tokens of {GREEDY} as the reference's"].holds
    http = replace(highest, contestant="bricolage highest http", threads=available_cores())
    beside = replace(http, contestant="bricolage highest http, busy", tokens_per_s=15.0)
    (bar,) = [bar for bar in list_bars([http, beside]) if "beside two processes" in bar.name]
    assert bar.value == 0.5 and bar.bar == 0.9 * available_cores() / (available_cores() + 2)
    assert not any("2048" in name or "http" in name for name in bars)
