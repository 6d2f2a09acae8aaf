"""One contestant alone in a process of its own, called as its users call it; nothing of bricolage is imported for another tool.

    python -m benchmarks.tools.alone onnxruntime model.onnx inputs.npz --seconds 1 --pauses 20 --outputs y.npz

Prints one line of JSON: the medians `steady_ms` (call after call, once that is steady) and `paused_ms` (single calls after a pause
in which something else reads as many bytes as the caches hold), each 0 where it was not asked for; and `first_ms`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PAUSE_S = 0.02
_SWEPT_BYTES = 32 << 20
_WARM_S = 0.3
_LEAST = 10


def call_of(tool: str, path: str, feed: Mapping[str, Any]) -> Callable[[], Any]:
    """The call of a tool on a model file or, of bricolage, an artifact, as the tool's documentation makes it.

    Raises:
        Whatever the tool raises of the file.
    """
    if tool == "bricolage":
        import bricolage

        fast = bricolage.load(path)
        return lambda: fast(**feed)
    if tool == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, dict(feed))
    import openvino

    # By itself it takes bfloat16 where the processor multiplies it; the others compute in float32.
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)


def answer_of(tool: str, result: Any) -> list[np.ndarray]:
    """Outputs in order."""
    if tool == "openvino":
        return [np.array(result[index]) for index in range(len(result))]
    results = result if isinstance(result, tuple | list) else [result]
    return [np.asarray(one) for one in results]


def steady(call: Callable[[], object], seconds: float) -> float:
    """Median of calls one after another, ms, after as many that are not counted."""
    for end in (time.perf_counter() + _WARM_S, time.perf_counter() + _WARM_S + seconds):
        times: list[float] = []
        while time.perf_counter() < end or len(times) < _LEAST:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def paused(call: Callable[[], object], calls: int, pause_s: float = PAUSE_S) -> list[float]:
    """Calls after pauses, ms each."""
    others = np.ones(_SWEPT_BYTES // 8)
    times: list[float] = []
    for _ in range(calls):
        end = time.perf_counter() + pause_s
        others.sum()
        time.sleep(max(0.0, end - time.perf_counter()))
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e3)
    return times


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=["bricolage", "onnxruntime", "openvino"])
    parser.add_argument("path")
    parser.add_argument("inputs")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--outputs", default="")
    asked = parser.parse_args(words)
    with np.load(asked.inputs, allow_pickle=False) as file:
        feed = {name: file[name] for name in file.files}
    call = call_of(asked.tool, asked.path, feed)
    begun = time.perf_counter()
    result = call()
    first_ms = (time.perf_counter() - begun) * 1e3
    if asked.outputs:
        np.savez(asked.outputs, *answer_of(asked.tool, result))
    times = paused(call, asked.pauses) if asked.pauses else []
    print(
        json.dumps(
            {
                "steady_ms": steady(call, asked.seconds) if asked.seconds else 0.0,
                "paused_ms": statistics.median(times) if times else 0.0,
                "first_ms": first_ms,
            }
        )
    )


if __name__ == "__main__":
    main()
