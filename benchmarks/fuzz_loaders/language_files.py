"""Language models that lie: GGUF files and folders of Hugging Face, small and sound, then changed by fields or by bytes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz_loaders import mutate
from benchmarks.fuzz_loaders.choices import Choices
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.language.tokenizer import BYTE_LETTERS, read_tokenizer

_PACKED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SIZES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210)}
"""By type of tensor: numbers and bytes of a block."""
_WIDTH, _HEADS, _FEED, _LETTERS = 32, 2, 64, 256
_MERGES = ("t h", "th e")
_TEXT = "the 12 \u00e9\U0001f642"


@dataclass
class Gguf:
    """What a file says, lies included."""

    metadata: list[tuple[str, int, Any]]
    tensors: list[tuple[str, list[int], int, int | None, bytes]]
    """Name, dimensions with the innermost first, type, offset (None: where it is), data."""
    counts: list[int | None] = field(default_factory=lambda: [None, None])
    """Of tensors and keys, where they lie."""
    version: int = 3

    def copy(self) -> Gguf:
        """One that can be changed by itself."""
        return Gguf(list(self.metadata), list(self.tensors), list(self.counts), self.version)

    def to_bytes(self) -> bytes:
        """The file."""
        tensor_count, key_count = self.counts
        head = [b"GGUF", struct.pack("<I", self.version)]
        head.append(_pack("Q", len(self.tensors) if tensor_count is None else tensor_count))
        head.append(_pack("Q", len(self.metadata) if key_count is None else key_count))
        for key, kind, value in self.metadata:
            head += [_text(key), _pack("I", kind), _value(kind, value)]
        placed, data = 0, []
        for name, shape, kind, offset, content in self.tensors:
            head += [_text(name), _pack("I", len(shape)), *(_pack("Q", size) for size in shape), _pack("I", kind)]
            head.append(_pack("Q", placed if offset is None else offset))
            data.append(content + bytes(-len(content) % 32))
            placed += len(data[-1])
        joined = b"".join(head)
        return joined + bytes(-len(joined) % 32) + b"".join(data)


def _pack(kind: str, value: Any) -> bytes:
    """A number, cut to what its type holds."""
    if kind in "fd":
        number = max(-3e38, min(3e38, float(value))) if isinstance(value, int | float) else 0.0
        return struct.pack(f"<{kind}", number)
    whole = int(value) if isinstance(value, int) else 0
    return (whole % (1 << 64)).to_bytes(8, "little")[: struct.calcsize(f"<{kind}")]


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == _ARRAY:
        return _array(*value) if isinstance(value, tuple) else _array(4, ())
    if kind == _STRING:
        return _text(value if isinstance(value, str) else str(value))
    return _pack(_PACKED.get(kind, "I"), value)


@lru_cache(64)
def _array(inner: int, values: tuple[Any, ...]) -> bytes:
    """Most arrays of a file are those of the sound one."""
    return _pack("I", inner) + _pack("Q", len(values)) + b"".join(_value(inner, each) for each in values)


def sound_gguf(architecture: str, kind: int, tokenizer: str) -> Gguf:
    """A model of one layer with random weights in blocks of a type."""
    draw = np.random.default_rng(0)
    tokens = [*sorted(BYTE_LETTERS), "th", "the", "<end>"] if tokenizer == "gpt2" else _pieces()
    tensors: list[tuple[str, list[int], int, int | None, bytes]] = []

    def add(name: str, *shape: int, kind: int = 0) -> None:
        count, size = _SIZES[kind]
        tensors.append((name, list(shape[::-1]), kind, None, draw.bytes(int(np.prod(shape)) // count * size)))

    width = 256 if kind in (12, 14) else _WIDTH
    add("token_embd.weight", len(tokens), width, kind=kind)
    add("output_norm.weight", width)
    inner = width
    shapes = {
        "attn_q": (inner, width),
        "attn_k": (inner, width),
        "attn_v": (inner, width),
        "attn_output": (width, inner),
    }
    shapes |= {"ffn_gate": (2 * width, width), "ffn_up": (2 * width, width), "ffn_down": (width, 2 * width)}
    for name, shape in shapes.items():
        add(f"blk.0.{name}.weight", *shape, kind=kind)
    norms = ["attn_norm", "ffn_norm"]
    norms += ["post_attention_norm", "post_ffw_norm"] if architecture == "gemma3" else []
    for name in norms:
        add(f"blk.0.{name}.weight", width)
    if architecture in ("qwen3", "gemma3"):
        add("blk.0.attn_q_norm.weight", width // _HEADS)
        add("blk.0.attn_k_norm.weight", width // _HEADS)
    if architecture == "qwen2":
        for name in ("attn_q", "attn_k", "attn_v"):
            add(f"blk.0.{name}.bias", inner)
    metadata: list[tuple[str, int, Any]] = [
        ("general.architecture", _STRING, architecture),
        (f"{architecture}.block_count", 4, 1),
        (f"{architecture}.context_length", 4, 64),
        (f"{architecture}.attention.head_count", 4, _HEADS),
        (f"{architecture}.attention.head_count_kv", 4, _HEADS),
        (f"{architecture}.attention.layer_norm_rms_epsilon", 6, 1e-6),
        (f"{architecture}.rope.freq_base", 6, 1e4),
        (f"{architecture}.attention.sliding_window", 4, 8),
        ("general.alignment", 4, 32),
        ("tokenizer.ggml.model", _STRING, tokenizer),
        ("tokenizer.ggml.pre", _STRING, "qwen2"),
        ("tokenizer.ggml.tokens", _ARRAY, (_STRING, tuple(tokens))),
        ("tokenizer.ggml.token_type", _ARRAY, (5, (*[1] * (len(tokens) - 1), 3))),
        ("tokenizer.ggml.scores", _ARRAY, (6, tuple(-float(number) for number in range(len(tokens))))),
        ("tokenizer.ggml.eos_token_id", 4, len(tokens) - 1),
        ("tokenizer.ggml.add_bos_token", 7, 0),
        ("tokenizer.chat_template", _STRING, "{{ messages }}"),
    ]
    if tokenizer == "gpt2":
        metadata.append(("tokenizer.ggml.merges", _ARRAY, (_STRING, _MERGES)))
    return Gguf(metadata, tensors)


def _pieces() -> list[str]:
    """Of a tokenizer with scores: bytes, then pieces."""
    return [*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "t", "h", "e", "th", "the", "\u2581the", "<end>"]


def change_gguf(sound: Gguf, choose: Choices) -> bytes:
    """The bytes of a file that lies somewhere."""
    changed = sound.copy()
    for _ in range(1 + choose.number(3)):
        match choose.number(4):
            case 0 | 1:
                _change_key(changed, choose)
            case 2 if changed.tensors:
                _change_tensor(changed, choose)
            case _:
                changed.counts[choose.number(2)] = abs(choose.of(mutate.NUMBERS))
    data = changed.to_bytes()
    return mutate.raw(data, choose) if choose.once_in(3) else data


def _change_key(changed: Gguf, choose: Choices) -> None:
    if not changed.metadata:
        return
    place = choose.number(len(changed.metadata))
    key, kind, value = changed.metadata[place]
    match choose.number(7):
        case 0:
            del changed.metadata[place]
        case 1:
            changed.metadata.append((key, kind, value))
        case 2:
            changed.metadata[place] = (choose.of(mutate.TEXTS), kind, value)
        case 3:
            changed.metadata[place] = (key, choose.number(14), value)
        case 4 if isinstance(value, tuple) and value[1]:
            inner, values = value[0], list(value[1])
            values[choose.number(len(values))] = (
                choose.of(mutate.TEXTS) if inner == _STRING else choose.of(mutate.NUMBERS)
            )
            del values[len(values) - choose.number(3) :]
            changed.metadata[place] = (key, kind, (inner if choose.number(3) else choose.number(14), tuple(values)))
        case _:
            value = choose.of(mutate.TEXTS) if kind == _STRING and choose.number(3) else choose.of(mutate.NUMBERS)
            changed.metadata[place] = (key, kind, value)


def _change_tensor(changed: Gguf, choose: Choices) -> None:
    place = choose.number(len(changed.tensors))
    name, shape, kind, offset, data = changed.tensors[place]
    match choose.number(6):
        case 0:
            del changed.tensors[place]
            return
        case 1:
            name = choose.of([other[0] for other in changed.tensors] + list(mutate.TEXTS))
        case 2:
            shape = [abs(choose.of(mutate.NUMBERS)) for _ in range(choose.number(6))]
        case 3:
            kind = choose.number(45)
        case 4:
            offset = abs(choose.of(mutate.NUMBERS))
        case _:
            data = mutate.raw(data, choose)
    changed.tensors[place] = (name, shape, kind, offset, data)


class LanguageFiles:
    """What reads them, with sound files, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty."""
        folder.mkdir()
        self._file, self._folder = folder / "model.gguf", folder / "model"
        self._folder.mkdir()
        self._sound = [
            sound_gguf("llama", 2, "gpt2"),
            sound_gguf("qwen2", 3, "gpt2"),
            sound_gguf("qwen3", 8, "gpt2"),
            sound_gguf("gemma3", 1, "llama"),
            sound_gguf("llama", 12, "llama"),
            sound_gguf("llama", 14, "gpt2"),
        ]
        self._files = sound_folder()

    def gguf(self, choose: Choices) -> None:
        """A GGUF file, read with its tokenizer."""
        self._file.write_bytes(change_gguf(choose.of(self._sound), choose))
        _read(self._file)

    def hugging_face(self, choose: Choices) -> None:
        """A folder: a changed JSON file, or changed bytes of weights."""
        files = dict(self._files)
        name = choose.of(sorted(files))
        if name.endswith(".json"):
            files[name] = json.dumps(mutate.json_value(json.loads(files[name]), choose)).encode("utf-8", "replace")
        if not name.endswith(".json") or choose.once_in(4):
            files[name] = mutate.raw(files[name], choose)
        for each, data in files.items():
            (self._folder / each).write_bytes(data)
        _read(self._folder)

    def load_sound(self) -> None:
        """Reads files that nothing was changed in."""
        for sound in self._sound:
            self._file.write_bytes(sound.to_bytes())
            _read(self._file)
        for name, data in self._files.items():
            (self._folder / name).write_bytes(data)
        _read(self._folder)


def _read(path: Path) -> None:
    read_decoder(path)
    tokenizer = read_tokenizer(path)
    tokens = tokenizer.encode(_TEXT)
    tokenizer.decode([token for token in tokens if token < tokenizer.size])


def sound_folder() -> dict[str, bytes]:
    """Files of a small llama by name."""
    tokens = [*sorted(BYTE_LETTERS), "th", "the", "<end>"]
    inner, count = _WIDTH, len(tokens)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (count, _WIDTH), "model.norm.weight": (_WIDTH,)}
    for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"):
        shapes[f"model.layers.0.{name}_proj.weight"] = (inner, _WIDTH)
    for name, (rows, columns) in {"gate": (_FEED, _WIDTH), "up": (_FEED, _WIDTH), "down": (_WIDTH, _FEED)}.items():
        shapes[f"model.layers.0.mlp.{name}_proj.weight"] = (rows, columns)
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"model.layers.0.{name}.weight"] = (_WIDTH,)
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    head = json.dumps(header).encode()
    config = {
        "model_type": "llama", "hidden_size": _WIDTH, "num_hidden_layers": 1, "num_attention_heads": _HEADS,
        "max_position_embeddings": 64, "tie_word_embeddings": True, "eos_token_id": [count - 1], "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }  # fmt: skip
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens[:-1])}, "merges": list(_MERGES)}
    added = {
        "id": count - 1,
        "content": "<end>",
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
    }
    tokenizer = {
        "version": "1.0", "model": model, "added_tokens": [{**added, "normalized": False}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }  # fmt: skip
    return {
        "config.json": json.dumps(config).encode(),
        "generation_config.json": json.dumps({"eos_token_id": count - 1}).encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<end>", "chat_template": "{{ messages }}"}).encode(),
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "model.safetensors": len(head).to_bytes(8, "little") + head + bytes(place),
    }
