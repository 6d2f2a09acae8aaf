"""What ONNX Runtime answers to a decoder's own file, token by token with its cache, in a process of its own: a fault of the runtime
must not end the caller's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from bricolage.base import scratch
from bricolage.base.codec import decode, encode
from bricolage.driver.decoders.decoder_file import DecoderFile, FileCall
from bricolage.errors import BackendFailed, UnreadDecoderGraph
from bricolage.frontends.onnx_file import load_onnx
from bricolage.language.onnx_decoders.cache_interface import CacheInterface, find_cache_interface
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.verify.named_arrays import load_values, save_tensors
from bricolage.verify.unoptimised import load_onnxruntime

_REQUEST, _ANSWER, _INPUTS, _OUTPUTS = "request.json", "logits.npy", "inputs.npz", "outputs.json"
_LIMIT_S = 600.0


def answer_by_onnxruntime(file: Path, interface: CacheInterface, calls: Sequence[Sequence[int]]) -> np.ndarray:
    """Logits [calls, vocabulary] behind the last token of each call; calls continue one text.

    Raises:
        NotUnderstood: ONNX Runtime does not run the file.
    """
    folder = scratch.temporary()
    try:
        _ask_process(folder, file, interface, calls, "answer")
        return np.asarray(np.load(folder / _ANSWER))
    finally:
        scratch.remove(folder)


def open_original(file: Path) -> DecoderFile:
    """A decoder's own file, as it is raced untouched.

    Raises:
        UnreadDecoderGraph: inputs or outputs have no known role.
        NotAModel, MissingExternalData, InvalidGraph and others: as `load_onnx`.
    """
    model = load_onnx(file)
    tensors = [value.const_value for value in model.graph.initializers.values()]
    files = {file, *(Path(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor))}
    try:
        interface = find_cache_interface(model)
    except NotUnderstood as reason:
        raise UnreadDecoderGraph(path=file, reason=reason) from reason
    nbytes = sum(path.stat().st_size for path in files)
    return DecoderFile(file.resolve(), nbytes, partial(_record_in_process, file, interface))


def _record_in_process(file: Path, interface: CacheInterface, calls: Sequence[Sequence[int]]) -> FileCall:
    folder = scratch.temporary()
    try:
        _ask_process(folder, file, interface, calls, "record")
        outputs = json.loads((folder / _OUTPUTS).read_text(encoding="utf-8"))
        inputs = {name: np.asarray(value) for name, value in load_values(folder / _INPUTS).items()}
        shapes = tuple((name, tuple(shape)) for name, shape in outputs)
        return FileCall(inputs, shapes, interface.logits)
    except NotUnderstood as reason:
        raise BackendFailed(backend="ONNX Runtime", stage="to run", reason=reason) from reason
    finally:
        scratch.remove(folder)


def _ask_process(
    folder: Path,
    file: Path,
    interface: CacheInterface,
    calls: Sequence[Sequence[int]],
    want: Literal["answer", "record"],
) -> None:
    """Raises NotUnderstood: ONNX Runtime does not run the file."""
    try:
        request = {
            "want": want,
            "file": str(file.absolute()),
            "interface": encode(interface),
            "calls": [list(call) for call in calls],
        }
        (folder / _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-P", "-m", __name__, str(folder)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotUnderstood(f"ONNX Runtime does not run the file ({error})") from error
    if not (folder / (_ANSWER if want == "answer" else _INPUTS)).is_file():
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {ended.returncode}"]
        line = next((line for line in reversed(lines) if "[ONNXRuntimeError]" in line), lines[-1])
        raise NotUnderstood(f"ONNX Runtime does not run the file ({line[:300]})")


class CachedSession:
    """A file in this process, which a fault of the runtime ends, with the cache of one text. Raises what ONNX Runtime does."""

    def __init__(self, file: str, interface: CacheInterface) -> None:
        """The text is empty."""
        options = load_onnxruntime().SessionOptions()
        # Sums of bytes with and without sign saturate on processors without VNNI, and are then not what the file says.
        options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = load_onnxruntime().InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._types = {given.name: _TYPES[given.type] for given in self._session.get_inputs()}
        self._interface = interface
        self._presents = [name for layer in interface.layers for name in (layer.present_key, layer.present_value)]
        self._begin()

    def _begin(self) -> None:
        interface, self._past = self._interface, 0
        shape = (1, interface.key_heads, 0, interface.head_size)
        pasts = [name for layer in interface.layers for name in (layer.past_key, layer.past_value)]
        self._caches = {name: np.zeros(shape, self._types[name]) for name in pasts}

    def answer(self, calls: Sequence[Sequence[int]]) -> np.ndarray:
        """Logits [calls, vocabulary] behind the last token of each call of a new text."""
        self._begin()
        logits = [self.extend(call)[0] for call in calls]
        return np.stack([np.asarray(each, np.float32).reshape(-1, each.shape[-1])[-1] for each in logits])

    def compose_inputs(self, call: Sequence[int]) -> dict[str, np.ndarray]:
        """Of a call with these tokens behind the text."""
        tokens, types = self._interface.tokens, self._types
        feeds = {tokens: np.array([call], types[tokens]), **self._caches}
        for name in self._interface.controls:
            feeds[name] = self._interface.control_value(name, np.dtype(types[name]), self._past, len(call))
        return feeds

    def extend(self, call: Sequence[int]) -> list[np.ndarray]:
        """Logits and the new cache, which the next call finds."""
        results: list[np.ndarray] = self._session.run(
            [self._interface.logits, *self._presents], self.compose_inputs(call)
        )
        self._caches = dict(zip(self._caches, results[1:], strict=True))
        self._past += len(call)
        return results

    def record(self, calls: Sequence[Sequence[int]]) -> tuple[dict[str, np.ndarray], list[tuple[str, list[int]]]]:
        """Inputs of the last call, and names and shapes of its outputs in the file's order."""
        for call in calls[:-1]:
            self.extend(call)
        feeds = self.compose_inputs(calls[-1])
        names = [result.name for result in self._session.get_outputs()]
        results = self._session.run(None, feeds)
        return feeds, [(name, list(result.shape)) for name, result in zip(names, results, strict=True)]


def _answer(folder: Path) -> None:
    request = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    interface = decode(CacheInterface, request["interface"])
    if request["want"] == "record":
        inputs, outputs = CachedSession(request["file"], interface).record(request["calls"])
        (folder / _OUTPUTS).write_text(json.dumps(outputs), encoding="utf-8")
        save_tensors(folder / _INPUTS, inputs)
    else:
        np.save(folder / _ANSWER, CachedSession(request["file"], interface).answer(request["calls"]))


_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}

if __name__ == "__main__":
    _answer(Path(sys.argv[1]))
