"""What is enumerated: for each grammar some variables with their shapes, and the operators among them.

One grammar with everything would be too large. Operators that no law joins need not meet, so each grammar has those of one
neighbourhood; what two grammars have in common is found twice and kept once. Sizes are as equal as they can be, since then every
equation has an instance in the grammar; shapes are made general again afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.equations.term_shapes import Shape


@dataclass(frozen=True)
class Grammar:
    """Variables of one shape are interchangeable. `sizes` are the numbers for which names stand in this grammar."""

    name: str
    variables: Mapping[str, Shape]
    operators: tuple[str, ...]
    sizes: Mapping[str, int]
    max_operators: int = 4


def _parts(axis: str, *kinds: str) -> tuple[str, ...]:
    return (f"concat_{axis}", *(f"{kind}_{axis}_{output}" for kind in kinds for output in (0, 1)))


_N, _NN, _C, _CC = "n", ("+", "n", "n"), "c", ("+", "c", "c")
_SQUARE: Shape = (_N, _N)
_IMAGE: Shape = ("b", _C, "h", "w")
_POINT: Shape = (_C, _C, 1, 1)
_KERNEL: Shape = (_C, _C, 3, 3)
_MATRICES = {"n": 3}
_IMAGES = {"b": 1, "c": 2, "h": 3, "w": 2, "n": 2}
_COLUMNS = _parts("columns", "split")
_ROWS = _parts("rows", "split")
_CHANNELS = _parts("channels", "split")
_BATCH = _parts("batch", "split")
_POOLS = ("average_pool3", "max_pool3")
_POOLS_2 = ("average_pool3_stride2", "max_pool3_stride2")

GRAMMARS: tuple[Grammar, ...] = (
    Grammar("sums", {"a": (_N,), "b": (_N,), "c": (_N,), "d": (_N,)}, ("add", "mul"), {"n": 12}),
    Grammar(
        "functions",
        {"a": (_N,), "b": (_N,), "s": (), "t": ()},
        ("add", "mul", "scale", "relu", "tanh", "sigmoid"),
        {"n": 18},
    ),
    Grammar(
        "exchanges",
        dict.fromkeys("abcd", _IMAGE),
        ("add", "mul", "concat_columns", "concat_channels", "concat_batch"),
        _IMAGES,
        3,
    ),
    Grammar("products", dict.fromkeys("abcd", _SQUARE), ("matmul", "add", "transpose"), _MATRICES),
    Grammar(
        "scaled products",
        {**dict.fromkeys("abc", _SQUARE), "s": ()},
        ("matmul", "add", "mul", "scale", "transpose"),
        _MATRICES,
        3,
    ),
    Grammar(
        "joined products", dict.fromkeys("abcd", _SQUARE), ("matmul", "concat_columns", "concat_rows", "add"), _MATRICES
    ),
    Grammar(
        "parts of matrices",
        {**dict.fromkeys("abc", _SQUARE), "x": (_N, _NN), "y": (_N, _NN), "z": (_NN, _N), "t": (_NN, _N)},
        ("matmul", "transpose", "add", *_COLUMNS, *_ROWS),
        _MATRICES,
        3,
    ),
    Grammar(
        "slices of matrices",
        {"a": _SQUARE, "b": _SQUARE, "x": (_N, _NN), "y": (_N, _NN), "z": (_NN, _N), "t": (_NN, _N), "s": ()},
        ("relu", "add", "mul", "scale", *_parts("columns", "split", "slice"), *_parts("rows", "split", "slice")),
        _MATRICES,
        3,
    ),
    Grammar(
        "functions of parts",
        {"a": _SQUARE, "b": _SQUARE, "x": (_N, _NN), "y": (_N, _NN), "s": ()},
        ("relu", "tanh", "sigmoid", "add", "mul", "scale", "transpose", *_COLUMNS),
        _MATRICES,
        3,
    ),
    Grammar(
        "reductions",
        {"a": _SQUARE, "b": _SQUARE, "s": ()},
        (
            *("sum_rows", "sum_columns", "mean_columns", "max_columns", "relu", "sigmoid", "tanh"),
            *("scale", "transpose", "add", "matmul", *_parts("rows"), *_parts("columns")),
        ),
        _MATRICES,
        3,
    ),
    Grammar(
        "merged axes",
        {
            "x": ("b", _N, _N),
            "y": ("b", _N, _N),
            "v": _SQUARE,
            "w": _SQUARE,
            "z": (("*", "b", _N), _N),
            "t": (("*", "b", _N), _N),
            "s": (),
        },
        ("merge", "unmerge", "project", "matmul", "relu", "sigmoid", "tanh", "add", "mul", "scale", "concat_columns"),
        {"b": 2, "n": 3},
        3,
    ),
    Grammar(
        "layouts",
        {"x": _IMAGE, "y": _IMAGE, "z": ("b", "h", "w", _C), "t": ("b", "h", "w", _C), "s": ()},
        (
            *("nhwc", "nchw", "relu", "sigmoid", "tanh", "add", "mul", "scale"),
            *(*_parts("channels", "split"), *_parts("columns", "split")),
        ),
        _IMAGES,
        3,
    ),
    Grammar(
        "convolutions",
        {"x": _IMAGE, "y": _IMAGE, "v": _KERNEL, "w": _KERNEL, "p": _POINT, "q": _POINT},
        ("conv1", "conv3", "enlarge", "add", "concat_channels", "concat_batch"),
        _IMAGES,
    ),
    Grammar(
        "strided convolutions",
        {"x": _IMAGE, "y": _IMAGE, "v": _KERNEL, "w": _KERNEL, "p": _POINT, "q": _POINT, "s": ()},
        ("conv1_stride2", "conv3_stride2", "enlarge", "add", "scale", "concat_channels", "concat_batch"),
        _IMAGES,
        3,
    ),
    Grammar(
        "padded convolutions",
        {"x": _IMAGE, "y": _IMAGE, "w": _KERNEL, "v": _KERNEL, "p": _POINT, "s": ()},
        ("conv1", "conv3", "conv3_valid", "pad", "enlarge", "relu", "tanh", "add", "mul", "scale", "concat_channels"),
        _IMAGES,
        3,
    ),
    Grammar(
        "parts of convolutions",
        {
            "x": _IMAGE,
            **dict.fromkeys("vw", _KERNEL),
            **dict.fromkeys("yz", ("b", _CC, "h", "w")),
            **dict.fromkeys("kl", (("+", "b", "b"), _C, "h", "w")),
            "u": (_CC, _C, 3, 3),
            "t": (_C, _CC, 3, 3),
        },
        ("conv3", "add", "relu", *_CHANNELS, *_BATCH),
        _IMAGES,
        3,
    ),
    Grammar(
        "grouped convolutions",
        {
            **dict.fromkeys("xy", _IMAGE),
            "z": ("b", _CC, "h", "w"),
            **dict.fromkeys("pq", _POINT),
            **dict.fromkeys("vw", _KERNEL),
            "u": (_CC, _C, 1, 1),
            "t": (_CC, _C, 3, 3),
        },
        ("conv1", "conv3", "conv1_group2", "conv3_group2", "enlarge", *_CHANNELS, *_BATCH),
        _IMAGES,
        3,
    ),
    Grammar(
        "joined groups",
        {"x": _IMAGE, "y": _IMAGE, "v": _KERNEL, "w": _KERNEL, "p": _POINT, "q": _POINT},
        ("conv1", "conv3", "conv1_group2", "conv3_group2", "enlarge", "concat_channels", "concat_batch"),
        _IMAGES,
    ),
    Grammar(
        "merged convolutions",
        {"x": _IMAGE, "v": _KERNEL, "w": _KERNEL, "p": _POINT, "q": _POINT},
        ("conv1", "conv3", "enlarge", "concat_batch", "split_channels_0", "split_channels_1"),
        _IMAGES,
    ),
    Grammar(
        "merged strided convolutions",
        {"x": _IMAGE, "v": _KERNEL, "w": _KERNEL, "p": _POINT, "q": _POINT},
        ("conv1_stride2", "conv3_stride2", "enlarge", "concat_batch", "split_channels_0", "split_channels_1"),
        _IMAGES,
    ),
    Grammar(
        "merged projections",
        {"x": ("b", _N, _N), "u": _SQUARE, "v": _SQUARE, "w": _SQUARE},
        ("project", "relu", "concat_columns", "split_columns_0", "split_columns_1"),
        {"b": 2, "n": 3},
    ),
    Grammar(
        "pools",
        {"x": _IMAGE, "y": _IMAGE, "z": ("b", _CC, "h", "w"), "t": ("b", _CC, "h", "w"), "s": ()},
        (
            *_POOLS,
            *_POOLS_2,
            "relu",
            "sigmoid",
            "tanh",
            "add",
            "mul",
            "scale",
            "mean_spatial",
            *_CHANNELS,
            "concat_batch",
        ),
        _IMAGES,
        3,
    ),
    Grammar(
        "pools and convolutions",
        {"x": _IMAGE, "y": _IMAGE, "p": _POINT, "q": _POINT, "w": _KERNEL, "s": ()},
        (*_POOLS, "conv1", "conv3", "mean_spatial", "add", "scale", "concat_channels", "concat_batch"),
        _IMAGES,
        3,
    ),
)
