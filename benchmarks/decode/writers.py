"""What goes on with tokens: our own loop of kernels, the product, its server, and peers."""

from __future__ import annotations

import json
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.decode.contestants import LlamaCpp
from benchmarks.real.packages import Unavailable
from benchmarks.tools.server_process import serving
from bricolage.base.generation_options import GenerationOptions, LanguageSettings
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.language.decoder_model import DecoderModel
from bricolage.language.language_model import GenerationStream
from bricolage.language.open_language import open_language_model
from bricolage.language.sequence import SequenceEvent, TextPiece
from bricolage.language.tokenizer import read_tokenizer


@dataclass(frozen=True)
class Timed:
    """One round."""

    first_s: float
    """To the first token."""
    tokens_per_s: float
    """Behind it."""


class Writer(ABC):
    """Goes on with tokens."""

    @abstractmethod
    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """The likeliest token, `count` times."""

    def logits(self, tokens: Sequence[int]) -> np.ndarray | None:
        """[some tokens, vocabulary]: behind each of the first tokens; None where it does not tell."""
        del tokens
        return None

    def continue_greedily(self, prompt: Sequence[int], count: int) -> list[int] | None:
        """The likeliest token, `count` times; None where it does not tell."""
        del prompt, count
        return None


class Kernels(Writer):
    """Ours without the rest of the product."""

    def __init__(self, file: Path, threads: int, config: str) -> None:
        decoder = read_decoder(file)
        self._model = DecoderModel(decoder, threads=threads, config="f32" if config == "highest" else "int8")

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`."""
        return self._write(prompt, count)[1]

    def continue_greedily(self, prompt: Sequence[int], count: int) -> list[int]:
        """See `Writer`."""
        return self._write(prompt, count)[0]

    def _write(self, prompt: Sequence[int], count: int) -> tuple[list[int], Timed]:
        state = self._model.open_sequence()
        begun = time.perf_counter()
        tokens = [int(self._model.extend([(state, prompt)])[0][-1].argmax())]
        first = time.perf_counter()
        for _ in range(count - 1):
            tokens.append(int(self._model.extend([(state, tokens[-1:])])[0][-1].argmax()))
        ended = time.perf_counter()
        state.close()
        return tokens, Timed(first - begun, (count - 1) / (ended - first))

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
        ends = tuple((token, -100.0) for token in self._model.tokenizer.ends)
        options = GenerationOptions(count, logit_bias=ends)
        sinks = [_TimedEvents() for _ in range(self._texts)]
        begun = time.perf_counter()
        streams = [GenerationStream(*self._model.submit(list(prompt), options, events), events) for events in sinks]
        for stream in streams:
            list(stream)
        firsts, ended = [events.pieces[0][0] for events in sinks], max(events.pieces[-1][0] for events in sinks)
        behind = sum(tokens for events in sinks for at, tokens in events.pieces if at > max(firsts))
        return Timed(min(firsts) - begun, behind / (ended - max(firsts)))


class _TimedEvents(queue.SimpleQueue[SequenceEvent]):
    """Events of one text, with the moments at which they came: its reader may be late."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, int]] = []
        """Seconds, and tokens."""

    def put(self, item: SequenceEvent, block: bool = True, timeout: float | None = None) -> None:
        """By the thread that runs the model."""
        if isinstance(item, TextPiece):
            self.pieces.append((time.perf_counter(), len(item.tokens)))
        super().put(item, block, timeout)


class Server:
    """`bricolage serve` on a file, for all that ask it."""

    def __init__(self, file: Path, threads: int) -> None:
        """The process begins with the first writer that asks for it."""
        self._file, self._threads = file, threads
        self._stack, self._port = ExitStack(), 0
        tokenizer = read_tokenizer(file)
        self.bias = {str(token): -100 for token in tokenizer.ends}
        """What keeps a text from its end."""

    def open_client(self) -> Any:
        """OpenAI's own client."""
        import openai

        if not self._port:
            words = (f"model={self._file}", "--threads", str(self._threads), "--prefix-memory", "0")
            self._port = self._stack.enter_context(serving(*words)).http_port
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self._port}/v1", api_key="none", timeout=600)

    def close(self) -> None:
        """Ends it."""
        self._stack.close()


class Clients(Writer):
    """OpenAI's client, or several at a time, each with a text of its own that comes as a stream."""

    def __init__(self, server: Server, clients: int) -> None:
        self._clients, self._bias = [server.open_client() for _ in range(clients)], server.bias

    def write(self, prompt: Sequence[int], count: int) -> Timed:
        """See `Writer`. Of several clients, the tokens of all behind the last first one."""
        chunks: list[list[float]] = [[] for _ in self._clients]
        numbers = [0] * len(self._clients)

        def ask(place: int, client: Any) -> None:
            # Each text begins with another token, so that none is a kept prefix of another.
            body = [*prompt[:-1], prompt[-1] + place]
            settings = {"max_tokens": count, "temperature": 0, "stream": True, "logit_bias": self._bias}
            usage = {"stream_options": {"include_usage": True}}
            for chunk in client.completions.create(model="model", prompt=body, **settings, **usage):
                if chunk.choices:
                    chunks[place].append(time.perf_counter())
                elif chunk.usage is not None:
                    numbers[place] = chunk.usage.completion_tokens

        begun = time.perf_counter()
        threads = [Thread(target=ask, args=each) for each in enumerate(self._clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(len(times) < 2 for times in chunks) or any(number != count for number in numbers):
            raise RuntimeError(f"of {count} tokens each, {numbers} came")
        last_first, ended = max(times[0] for times in chunks), max(times[-1] for times in chunks)
        # The first chunk is the first token; the others, whose tokens come together, share the rest.
        behind = sum(
            sum(at > last_first for at in times) * (number - 1) / (len(times) - 1)
            for times, number in zip(chunks, numbers, strict=True)
        )
        return Timed(min(times[0] for times in chunks) - begun, behind / (ended - last_first))


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
        return np.asarray(self._server.logits(tokens))

    def continue_greedily(self, prompt: Sequence[int], count: int) -> list[int] | None:
        """See `Writer`."""
        return list(self._server._asked(prompt, count, 0).get("tokens", [])) or None


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
