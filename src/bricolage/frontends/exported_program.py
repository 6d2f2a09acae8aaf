"""`.pt2` files, as `torch.export.save` writes them, opened without running code that they may contain.

PyTorch's own reader unpickles whatever an archive says is pickled, evaluates expressions of sizes as Python, and looks up the
functions of a graph by their dotted names. So an archive is looked through first: tensors must lie in it as plain bytes, functions
must be operators, and sizes sums and products.
"""

from __future__ import annotations

import ast
import json
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bricolage.base import telemetry
from bricolage.errors import BadTorchModel, MissingFile, MissingLibrary, NotAModel

if TYPE_CHECKING:
    import torch

SUFFIX = ".pt2"
_TARGET = re.compile(
    r"torch\.ops\.(aten|prim|prims|higher_order|quantized_decomposed)\.\w+(\.\w+)?"
    r"|_operator\.[a-z]\w*|math\.[a-z]\w*|torch\.(_?sym_\w+)"
)
"""Functions that a graph may call: operators, and arithmetic on sizes."""
_ARITHMETIC = frozenset({"Add", "Mul", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "CleanDiv", "IntTrueDiv"}) | {
    "Max",
    "Min",
    "Integer",
    "Rational",
}
"""Functions of sympy, and of PyTorch's own, of which sizes are made; their arguments are such, too."""
_HIGHEST_POWER = 16
"""Of a symbol: powers of numbers could be as long as one likes."""
_LARGEST_JSON = 1 << 28
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_forcing = threading.Lock()


def load_program(path: str | Path) -> torch.export.ExportedProgram:
    """Reads an exported program.

    Raises:
        MissingFile, NotAModel: there is no such file, or it is no archive of an exported program.
        BadTorchModel: it holds what would have to be unpickled or evaluated, or torch cannot read it.
        MissingLibrary: torch is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile(path=path)
    _look_through(path)
    telemetry.disable()
    try:
        import torch
    except ImportError as error:
        raise MissingLibrary(name="torch", purpose="to read PyTorch models", reason=error, extra="export") from error
    try:
        with _without_pickles():
            program = torch.export.load(str(path))
    except Exception as error:  # its reader assumes an archive of its own making
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadTorchModel(reason=f"'{path}': {lines[0]}") from error
    program._guards_code = []  # Python to be evaluated; the executable checks shapes itself
    return program


@contextmanager
def _without_pickles() -> Iterator[None]:
    """`torch.load` reads tensors only, meanwhile and in the whole process."""
    with _forcing:
        before = os.environ.get(_FORCE)
        os.environ[_FORCE] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_FORCE]
            else:
                os.environ[_FORCE] = before


def _look_through(path: Path) -> None:
    """Whether an archive holds what may be read.

    Raises:
        NotAModel, BadTorchModel: as `load_program`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            root = names[0].partition("/")[0] if names else ""
            inside = {name.removeprefix(f"{root}/") for name in names}
            if "archive_format" not in inside or "models/model.json" not in inside:
                raise NotAModel(
                    path=path, reason="it is no program that torch.export.save of PyTorch 2.8 or later wrote"
                )
            if len(inside) != len(names):
                raise NotAModel(path=path, reason="it holds two files of one name")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise NotAModel(
                    path=path, reason="it is compressed, and could unpack to any size; PyTorch writes it plain"
                )
            for kind in ("weights", "constants"):
                _check_payloads(path, _json(archive, f"{root}/data/{kind}/model_{kind}_config.json"))
            model = _json(archive, f"{root}/models/model.json")
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise NotAModel(path=path, reason=f"it is damaged ({error})") from error
    for word, value in _entries(model):
        if word == "target" and not _TARGET.fullmatch(str(value)):
            raise BadTorchModel(reason=f"'{path}' calls '{value}', which is no operator of PyTorch's own")
        if word == "expr_str" and not _is_size(str(value)):
            raise BadTorchModel(reason=f"'{path}' computes a size by '{value}', which is more than arithmetic")


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    if archive.getinfo(name).file_size > _LARGEST_JSON:
        raise ValueError(f"{name} is larger than {_LARGEST_JSON} bytes")
    return json.loads(archive.read(name))


def _check_payloads(path: Path, config: Any) -> None:
    for name, entry in config["config"].items():
        if entry["use_pickle"] or not str(entry["path_name"]).startswith(("weight_", "tensor_")):
            raise BadTorchModel(reason=f"'{path}' holds '{name}' as a pickle, and opening one runs what is in it")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of every mapping, with what stands there where that is no mapping or list itself."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, list):
            waiting.extend(current)
        elif isinstance(current, dict):
            for key, inner in current.items():
                if isinstance(inner, list | dict):
                    waiting.append(inner)
                else:
                    yield key, inner


def _is_size(text: str) -> bool:
    """Whether an expression is made of numbers, symbols and functions of sympy's alone: "Mul(Integer(2), Symbol('s0'))"."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _is_plain(tree)


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Name):
        return re.fullmatch(r"z?[suf]+\d+", node.id) is not None
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_plain(node.operand)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod) and all(
            map(_is_plain, (node.left, node.right))
        )
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if not all(word.arg and isinstance(word.value, ast.Constant) for word in node.keywords):
        return False
    name, given = node.func.id, node.args
    if name in ("Symbol", "Float"):  # whose argument is a string
        values = [argument.value for argument in given if isinstance(argument, ast.Constant)]
        return len(values) == len(given) and all(re.fullmatch(r"[\w.+-]+", str(value)) for value in values)
    if name == "Pow":
        return len(given) == 2 and _is_symbol(given[0]) and _is_small(given[1])
    return name in _ARITHMETIC and all(map(_is_plain, given))


def _is_symbol(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol"
    return (called or isinstance(node, ast.Name)) and _is_plain(node)


def _is_small(node: ast.expr) -> bool:
    """Whether an exponent is a number like Integer(2)."""
    try:
        text = ast.unparse(node)
        return abs(int(text.removeprefix("Integer(").removesuffix(")"))) <= _HIGHEST_POWER
    except ValueError:
        return False
