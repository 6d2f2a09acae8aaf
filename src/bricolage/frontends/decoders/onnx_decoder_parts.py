"""The files that make up a decoder in an ONNX file: its graph, its weights, and what says how its tokens are made."""

from __future__ import annotations

from pathlib import Path

import onnx

from bricolage.errors import NotALanguageModel
from bricolage.frontends.decoders.onnx_decoder_files import find_settings
from bricolage.frontends.external import external_tensors
from bricolage.frontends.onnx_file import read_proto

_SETTINGS = (
    "config.json",
    "genai_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def list_decoder_parts(graph: Path) -> list[Path]:
    """The files that belong to an ONNX file with a cache, by name; in one folder they are the same decoder.

    Raises:
        NotALanguageModel: weights lie in another folder than their graph.
        NotAModel, MissingExternalData: the file is damaged.
    """
    locations = {_location_of(tensor) for tensor in external_tensors(read_proto(graph))}
    if elsewhere := sorted(name for name in locations if name != Path(name).name):
        reason = f"its weights lie in '{elsewhere[0]}', and an artifact needs them in the folder of their graph"
        raise NotALanguageModel(path=graph, reason=reason)
    folder, _ = find_settings(graph)
    settings = [folder / name for name in _SETTINGS if (folder / name).is_file()]
    return sorted((graph, *(graph.parent / name for name in locations), *settings), key=lambda path: path.name)


def _location_of(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
