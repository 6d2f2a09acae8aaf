"""Decoders as real exporters write them, read back and compared with ONNX Runtime and with Transformers.

    python -m benchmarks.exported_decoders [--exporters torch,optimum,genai-fp32,genai-int4] [--models llama,qwen3] [--json]

A small model of each architecture with random weights, made by Transformers, goes through `torch.onnx.export` (opset 23, with its
own wrapper for the cache), through Optimum's exporter and through ONNX Runtime GenAI's builder. An exporter that is not installed,
or that fails, is a row with the reason. `read` is the difference of logits, by norm, between what was read and ONNX Runtime on the
file; `transformers` the one to the model before it was exported. Blocks of 4 bits are rounded weights, and ONNX Runtime rounds
rows to bytes before it multiplies them.

With `--file PATH` a file that you have is read, and compared with ONNX Runtime alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.errors import BricolageError
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.onnx_file import load_onnx
from bricolage.language.any_decoder import read_any_decoder
from bricolage.language.onnx_decoders.cache_interface import find_cache_interface
from bricolage.language.onnx_decoders.original_answers import answer_by_onnxruntime
from bricolage.verify.decoder_reference import compute_decoder_logits

_KINDS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}
_LAYERS = {"llama": 2, "qwen2": 2, "qwen3": 2, "gemma3": 6}
_HEADS, _KEY_HEADS, _SIZE, _VOCABULARY, _POSITIONS = 4, 2, 32, 264, 128
_CALLS = (24, 1, 4)


@dataclass
class Row:
    """One file."""

    exporter: str
    model: str
    read: float | None = None
    transformers: float | None = None
    operators: int = 0
    reason: str = ""


def make_model(name: str) -> Any:
    """A model of Transformers with random weights."""
    import torch
    import transformers

    sizes: dict[str, Any] = {"vocab_size": _VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "head_dim": _SIZE}
    sizes |= {"num_hidden_layers": _LAYERS[name], "num_attention_heads": _HEADS, "num_key_value_heads": _KEY_HEADS}
    sizes |= {"max_position_embeddings": _POSITIONS, "initializer_range": 0.2, "tie_word_embeddings": name != "qwen2"}
    if name == "gemma3":
        sizes |= {"sliding_window": 9, "query_pre_attn_scalar": _SIZE}
    kind = _KINDS[name]
    config = getattr(transformers, f"{kind}TextConfig" if name == "gemma3" else f"{kind}Config")(**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write_tokenizer(folder: Path) -> None:
    """256 letters and three special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|start|>", "<|end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"bos_token": "<|start|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")


def export_by_torch(model: Any, folder: Path) -> None:
    """`torch.onnx.export` of a module that takes and gives the cache as tensors."""
    import torch
    from transformers import DynamicCache

    class WithCache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.eval()

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, pasts: Any) -> Any:
            cache = DynamicCache()
            for layer in range(len(pasts) // 2):
                cache.update(pasts[2 * layer], pasts[2 * layer + 1], layer)
            answer = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
            )
            return answer.logits, *(
                part for layer in answer.past_key_values.layers for part in (layer.keys, layer.values)
            )

    count = model.config.num_hidden_layers
    pasts = [torch.randn(1, _KEY_HEADS, 4, _SIZE) for _ in range(2 * count)]
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    given = (tokens, torch.ones(1, 7, dtype=torch.int64), torch.arange(4, 7)[None], pasts)
    names = [f"{layer}.{kind}" for layer in range(count) for kind in ("key", "value")]
    dynamic = torch.export.Dim.DYNAMIC
    torch.onnx.export(
        WithCache(),
        given,
        str(folder / "model.onnx"),
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in names)],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=({1: dynamic}, {1: dynamic}, {1: dynamic}, [{2: dynamic}] * (2 * count)),
        dynamo=True,
        opset_version=23,
        verbose=False,
    )


def export_by_optimum(model: Any, folder: Path) -> None:
    """Optimum's exporter."""
    from optimum.exporters.onnx import onnx_export_from_model

    onnx_export_from_model(model, folder, task="text-generation-with-past", do_validation=False)


def _export_by_genai(precision: str) -> Callable[[Any, Path], None]:
    def export(model: Any, folder: Path) -> None:
        """The builder of ONNX Runtime GenAI, which reads a folder."""
        source = folder / "source"
        model.save_pretrained(source)
        write_tokenizer(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(folder)]
        command += ["-p", precision, "-e", "cpu", "-c", str(folder / "cache"), "--extra_options", "int4_block_size=32"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError((ended.stderr.strip().splitlines() or ["it failed"])[-1])

    return export


EXPORTERS: Mapping[str, Callable[[Any, Path], None]] = {
    "torch": export_by_torch,
    "optimum": export_by_optimum,
    "genai-fp32": _export_by_genai("fp32"),
    "genai-int4": _export_by_genai("int4"),
}


def compare(file: Path, decoder: DecoderDescription, tokens: list[int]) -> float:
    """The difference of logits behind each call to those of ONNX Runtime."""
    ends = np.cumsum(_CALLS)
    calls = [tokens[end - count : end] for end, count in zip(ends, _CALLS, strict=True)]
    original = answer_by_onnxruntime(file, find_cache_interface(load_onnx(file)), calls)
    logits = compute_decoder_logits(decoder, tokens, np.float32)[ends - 1]
    return float(np.linalg.norm(logits - original) / np.linalg.norm(original))


def _draw_tokens(vocabulary: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(0).integers(0, vocabulary, sum(_CALLS))]


def measure(exporter: str, name: str) -> Row:
    """One row."""
    row = Row(exporter, name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            model = make_model(name)
            EXPORTERS[exporter](model, folder)
            write_tokenizer(folder)
            if not (folder / "genai_config.json").is_file():
                (folder / "config.json").write_text(
                    json.dumps({"max_position_embeddings": _POSITIONS}), encoding="utf-8"
                )
            file = folder / "model.onnx"
            decoder = read_any_decoder(file)
            tokens = _draw_tokens(_VOCABULARY)
            row.read = compare(file, decoder, tokens)
            row.operators = sum(1 for _ in load_onnx(file).graph)
            row.transformers = _compare_with_transformers(model, decoder, tokens)
        except (BricolageError, ImportError, RuntimeError, KeyError, TypeError, ValueError) as error:
            row.reason = str(error).splitlines()[0][:160]
    return row


def _compare_with_transformers(model: Any, decoder: DecoderDescription, tokens: list[int]) -> float:
    import torch

    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    return float(np.linalg.norm(compute_decoder_logits(decoder, tokens) - expected) / np.linalg.norm(expected))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exporters", default=",".join(EXPORTERS))
    parser.add_argument("--models", default=",".join(_KINDS))
    parser.add_argument("--file", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: Iterable[Row] = (
        measure(exporter, name) for exporter in given.exporters.split(",") for name in given.models.split(",")
    )
    if given.file is not None:
        decoder = read_any_decoder(given.file)
        rows = [Row("", given.file.stem, compare(given.file, decoder, _draw_tokens(decoder.vocabulary)))]
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        figures = [f"{value:.1e}" if value is not None else "-" for value in (row.read, row.transformers)]
        print(
            f"{row.exporter:12} {row.model:8} {row.operators:5} {figures[0]:>9} {figures[1]:>9}  {row.reason}",
            flush=True,
        )


if __name__ == "__main__":
    main()
