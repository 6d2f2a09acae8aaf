"""Models of each architecture with random weights, in PyTorch, as a folder of Hugging Face and as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

LETTERS = 256
SPECIAL = ("<|start|>", "<|end|>", "<|im_end|>")
VOCABULARY = LETTERS + len(SPECIAL) + 5
"""Five rows of the embedding have no token of their own."""
LAYERS = {"llama": 2, "qwen2": 2, "qwen3": 2, "gemma2": 3, "gemma3": 7}
"""Of seven layers of Gemma, the sixth sees everything."""
HEADS, KEY_HEADS, WIDTH, FEED_FORWARD, WINDOW, POSITIONS = 4, 2, 64, 96, 5, 64
HEAD_SIZES = {"llama": 16, "qwen2": 16, "qwen3": 32, "gemma2": 32, "gemma3": 32}
CAPS = {"attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.0}
"""Of Gemma 2, low enough that small models reach them."""
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"))


def torch_decoder(architecture: str, **changes: object) -> Any:
    """A model of Transformers, in float32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": FEED_FORWARD, "head_dim": HEAD_SIZES[architecture],
        "num_hidden_layers": LAYERS[architecture], "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
        "max_position_embeddings": POSITIONS, "initializer_range": 0.2, "tie_word_embeddings": architecture != "qwen2",
    }  # fmt: skip
    if architecture in ("gemma2", "gemma3"):
        sizes |= {"sliding_window": WINDOW, "query_pre_attn_scalar": HEAD_SIZES[architecture]}
    if architecture == "gemma2":
        sizes |= CAPS | {"attn_implementation": "eager"}  # the other implementations leave the cap out
    kind = architecture.title()
    config_kind = f"{kind}TextConfig" if architecture == "gemma3" else f"{kind}Config"
    config = getattr(transformers, config_kind)(**{**sizes, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # else norms are 1 and biases 0
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def torch_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """[tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].numpy())


def letters() -> list[str]:
    """What each byte is written as: a tokenizer with every byte and three merges."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def vocabulary() -> list[str]:
    """Tokens by number; merged ones stand in the place of three rare letters."""
    merged = ["".join(pair) for pair in MERGES]
    kept = [letter for letter in letters() if letter not in "ĀāĂ"]
    return [*kept, *merged, *SPECIAL]


def write_folder(model: Any, folder: Path) -> Path:
    """As Transformers writes it, with a tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary())}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{LETTERS + 1}, {LETTERS + 2}]}}')
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def write_gguf(model: Any, architecture: str, path: Path, kind: str = "F32") -> Path:
    """As the converter of llama.cpp writes it, by its package; matrices in blocks of a kind."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    parameters = config.rope_parameters
    writer.add_rope_freq_base(parameters.get("full_attention", parameters)["rope_theta"])
    if architecture in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    else:
        writer.add_rope_dimension_count(config.head_dim)
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(WINDOW)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    _write_tokenizer(gguf, writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    form = gguf.GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = tensor.numpy().astype(np.float32)
        if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            numbers = numbers + 1
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = HEADS if ".q_proj." in name else KEY_HEADS
            numbers = numbers.reshape(heads, 2, -1, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
        stem, _, suffix = name.rpartition(".")
        short = f"{names.get_name(stem)}.{suffix}"
        if numbers.ndim == 2 and kind != "F32":
            writer.add_tensor(short, gguf.quants.quantize(numbers, form), raw_dtype=form)
        else:
            writer.add_tensor(short, numbers)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


def _write_tokenizer(gguf: Any, writer: Any) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control = gguf.TokenType.CONTROL
    writer.add_token_types([control if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(LETTERS)
    writer.add_eos_token_id(LETTERS + 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0].content }}")


def load_dequantised(model: Any, architecture: str, path: Path) -> None:
    """Gives a model the numbers that a file's blocks stand for, by the package `gguf`."""
    gguf = pytest.importorskip("gguf")
    import torch

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], model.config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stem, _, suffix = name.rpartition(".")
            tensor = stored[f"{names.get_name(stem)}.{suffix}"]
            if parameter.ndim != 2:
                continue
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
                heads = HEADS if ".q_proj." in name else KEY_HEADS
                numbers = numbers.reshape(heads, -1, 2, numbers.shape[1]).swapaxes(1, 2).reshape(numbers.shape)
            parameter.copy_(torch.from_numpy(np.array(numbers)))
