"""What the inputs and outputs of a decoder with a cache are, by their names, types and shapes.

Exporters are_alike on `input_ids`, `attention_mask`, `position_ids`, and on a key and a value of each layer as inputs
[batch, key_heads, past, head_size] and as outputs that are longer by the new tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.language.onnx_decoders.reading_failure import NotUnderstood

_TOKENS = "input_ids"
_KEY_OR_VALUE = re.compile(r"(?:^|[._/])(k|key|v|value)(?:s|_cache|_states)?(?=$|[._/])")
_LAYER = re.compile(r"(\d+)")
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class LayerCache:
    """Names of what one layer keeps, as inputs and as outputs."""

    past_key: str
    past_value: str
    present_key: str
    present_value: str


@dataclass(frozen=True)
class CacheInterface:
    """Names of a decoder's inputs and outputs by what they are."""

    tokens: str
    controls: tuple[str, ...]
    """Inputs that follow from numbers of tokens alone."""
    layers: tuple[LayerCache, ...]
    logits: str
    key_heads: int
    head_size: int

    def control_value(self, name: str, dtype: np.dtype, past: int, new: int) -> np.ndarray:
        """What an input of `controls` is for one sequence whose cache has `past` tokens, and that gets `new` ones."""
        return np.asarray(_CONTROLS[name](past, new)).astype(dtype)


def _attention_mask(past: int, new: int) -> np.ndarray:
    return np.ones((1, past + new))


def _position_ids(past: int, new: int) -> np.ndarray:
    return np.arange(past, past + new)[None]


def _uses_cache(past: int, _new: int) -> np.ndarray:
    return np.array([past > 0])


CACHE_BRANCH = "use_cache_branch"
"""Input of Optimum's merged decoders: whether there is a cache."""
_CONTROLS: Mapping[str, Callable[[int, int], np.ndarray]] = {
    "attention_mask": _attention_mask,
    "position_ids": _position_ids,
    CACHE_BRANCH: _uses_cache,
}


def find_cache_interface(model: ir.Model) -> CacheInterface:
    """The interface of a clean model.

    Raises:
        NotUnderstood: an input or output has no role, or a layer lacks one.
    """
    inputs = {value.name or "": value for value in model.graph.inputs if value.name not in model.graph.initializers}
    outputs = {value.name or "": value for value in model.graph.outputs}
    if _TOKENS not in inputs:
        raise NotUnderstood(f"it has no input '{_TOKENS}'")
    pasts, presents = _pair_by_layer(list(inputs.values())), _pair_by_layer(list(outputs.values()))
    if not pasts or len(pasts) != len(presents):
        raise NotUnderstood(f"it takes the cache of {len(pasts)} layers and hands out that of {len(presents)}")
    layers = tuple(LayerCache(*past, *present) for past, present in zip(pasts, presents, strict=True))
    caches = {name for pair in pasts for name in pair}
    rest = [name for name in inputs if name != _TOKENS and name not in caches]
    for name in rest:
        if name not in _CONTROLS:
            raise NotUnderstood(f"nothing is known of its input '{name}'")
    others = [name for name in outputs if name not in {name for pair in presents for name in pair}]
    if len(others) != 1:
        raise NotUnderstood(f"but for its cache it has the outputs {', '.join(others) or 'none'}, not logits alone")
    heads, size = _sizes_of_caches([inputs[name] for name in caches] + [outputs[name] for p in presents for name in p])
    return CacheInterface(_TOKENS, tuple(rest), layers, others[0], heads, size)


def _sizes_of_caches(values: Sequence[ir.Value]) -> tuple[int, int]:
    """Number and size of the heads of keys, which an exporter may state of the outputs alone.

    Raises:
        NotUnderstood: layers have others, or nothing states them.
    """
    stated: list[set[int]] = [set(), set()]
    for value in values:
        for sizes, axis in zip(stated, (1, 3), strict=True):
            dimension = value.shape[axis] if value.shape is not None else None
            if isinstance(dimension, int):
                sizes.add(dimension)
    if any(len(sizes) != 1 for sizes in stated):
        raise NotUnderstood(
            "its caches are not [batch, heads, tokens, size of a head] with the same sizes in all layers"
        )
    return stated[0].pop(), stated[1].pop()


def _pair_by_layer(values: Sequence[ir.Value]) -> list[tuple[str, str]]:
    """Names of keys and values of rank 4, layer by layer.

    Raises:
        NotUnderstood: a layer has one of both alone, or two of them.
    """
    layers: dict[int, dict[str, str]] = {}
    for value in values:
        name = value.name or ""
        roles, number = _KEY_OR_VALUE.findall(name.lower()), _LAYER.search(name)
        if not roles or number is None or value.dtype not in _FLOATS or value.shape is None or len(value.shape) != 4:
            continue
        kept = layers.setdefault(int(number[1]), {})
        role = roles[-1][0]  # the last word: all begin with `past_key_values`
        if role in kept:
            raise NotUnderstood(f"'{kept[role]}' and '{name}' have the same role")
        kept[role] = name
    for layer, kept in layers.items():
        if set(kept) != {"k", "v"}:
            raise NotUnderstood(f"layer {layer} has the cache '{next(iter(kept.values()))}' alone")
    return [(kept["k"], kept["v"]) for _, kept in sorted(layers.items())]
