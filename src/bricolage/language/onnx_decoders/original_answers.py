"""What ONNX Runtime answers to a decoder's own file, token by token with its cache, in a process of its own: a fault of the runtime
must not end the caller's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bricolage.base import scratch
from bricolage.base.codec import decode, encode
from bricolage.language.onnx_decoders.cache_interface import CacheInterface
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.verify.unoptimised import load_onnxruntime

_REQUEST, _ANSWER = "request.json", "logits.npy"
_LIMIT_S = 600.0


def answer_by_onnxruntime(file: Path, interface: CacheInterface, calls: Sequence[Sequence[int]]) -> np.ndarray:
    """Logits [calls, vocabulary] behind the last token of each call; calls continue one text.

    Raises:
        NotUnderstood: ONNX Runtime does not run the file.
    """
    folder = scratch.temporary()
    try:
        request = {
            "file": str(file.absolute()),
            "interface": encode(interface),
            "calls": [list(call) for call in calls],
        }
        (folder / _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-P", "-m", __name__, str(folder)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
        if not (folder / _ANSWER).is_file():
            lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {ended.returncode}"]
            raise NotUnderstood(f"ONNX Runtime does not run the file ({lines[-1][:300]})")
        return np.asarray(np.load(folder / _ANSWER))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotUnderstood(f"ONNX Runtime does not run the file ({error})") from error
    finally:
        scratch.remove(folder)


def compute_answers(file: str, interface: CacheInterface, calls: Sequence[Sequence[int]]) -> np.ndarray:
    """The same in this process, which a fault of the runtime ends. Raises what ONNX Runtime does."""
    options = load_onnxruntime().SessionOptions()
    # Sums of bytes with and without sign saturate on processors without VNNI, and are then not what the file says.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = load_onnxruntime().InferenceSession(file, options, providers=["CPUExecutionProvider"])
    types = {given.name: _TYPES[given.type] for given in session.get_inputs()}
    pasts = [name for layer in interface.layers for name in (layer.past_key, layer.past_value)]
    presents = [name for layer in interface.layers for name in (layer.present_key, layer.present_value)]
    caches = {name: np.zeros((1, interface.key_heads, 0, interface.head_size), types[name]) for name in pasts}
    rows, past = [], 0
    for call in calls:
        feeds = {interface.tokens: np.array([call], types[interface.tokens]), **caches}
        for name in interface.controls:
            feeds[name] = interface.control_value(name, np.dtype(types[name]), past, len(call))
        logits, *news = session.run([interface.logits, *presents], feeds)
        caches = dict(zip(pasts, news, strict=True))
        past += len(call)
        rows.append(np.asarray(logits, np.float32).reshape(-1, logits.shape[-1])[-1])
    return np.stack(rows)


def _answer(folder: Path) -> None:
    request = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    interface = decode(CacheInterface, request["interface"])
    np.save(folder / _ANSWER, compute_answers(request["file"], interface, request["calls"]))


_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}

if __name__ == "__main__":
    _answer(Path(sys.argv[1]))
