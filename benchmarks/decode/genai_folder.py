"""A folder for ONNX Runtime GenAI, made of a GGUF file of the llama architecture without a network.

    python -m benchmarks.decode.genai_folder MODEL.gguf FOLDER

The weights become floats in a folder of Hugging Face, and the builder of `onnxruntime-genai` rounds them to 4 bits again, symmetric
in blocks of 32, with rows as bytes (accuracy level 4): its fastest form. So they are not the weights of a Q4_1 file bit by bit.
The benchmark gives tokens; the folder has a tokenizer since the builder asks for one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bricolage.frontends.decoders.decoder_description import DecoderDescription, matrix_numbers
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.language.tokenizer import read_tokenizer

_ROLES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}


def write_hugging_face(decoder: DecoderDescription, folder: Path) -> None:
    """The same weights as floats."""
    from safetensors.numpy import save_file

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": decoder.width,
        "intermediate_size": matrix_numbers(decoder.layers[0].gate).shape[0],
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.key_heads,
        "head_dim": decoder.head_size,
        "max_position_embeddings": decoder.context_length,
        "rms_norm_eps": decoder.epsilon,
        "rope_theta": decoder.layers[0].rope.base,
        "rope_parameters": {"rope_type": "default", "rope_theta": decoder.layers[0].rope.base},
        "vocab_size": decoder.vocabulary,
        "tie_word_embeddings": decoder.head is None,
        "bos_token_id": decoder.tokenizer.begin,
        "eos_token_id": decoder.tokenizer.end,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {"model.embed_tokens.weight": matrix_numbers(decoder.embedding), "model.norm.weight": decoder.norm}
    if decoder.head is not None:
        tensors["lm_head.weight"] = matrix_numbers(decoder.head)
    for number, layer in enumerate(decoder.layers):
        for role, name in _ROLES.items():
            tensors[f"model.layers.{number}.{name}.weight"] = matrix_numbers(getattr(layer, role))
    save_file(
        {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode.genai_folder")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        write_hugging_face(read_decoder(given.model), Path(text))
        read_tokenizer(given.model)._backend.save(str(Path(text) / "tokenizer.json"))
        (Path(text) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", text, "-i", text]
        command += ["-o", str(given.folder), "-p", "int4", "-e", "cpu", "-c", str(Path(text) / "cache")]
        command += ["--extra_options", "hf_token=false", "int4_accuracy_level=4", "int4_block_size=32"]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
