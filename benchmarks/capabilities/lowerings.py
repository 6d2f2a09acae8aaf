"""Which capability tables are older than what they rest on: our own lowerings of operators, by digests that stand in the table.

A digest is of a file's syntax tree, local variables by number, without comments, docstrings, annotations and layout: a sentence, a
line break or another name of a variable makes no table older. A file that registers operators concerns these operators alone.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

import bricolage
from bricolage.backends.capabilities import CapabilityTable

_PACKAGE = Path(bricolage.__file__).parent
_SHARED = ("lowering/*.py", "lowering/operators/**/*.py")
RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "native": (*_SHARED, "native/ir/**/*.py"),
    "torch": (*_SHARED, "lowering/torch/*.py"),
    "inductor": (*_SHARED, "lowering/torch/*.py"),
    "xla": (*_SHARED, "lowering/jax/*.py"),
    "tvm": ("backends/tvm_rewrite.py",),
    "iree": ("backends/iree_compile.py",),
}
"""By backend, the files below the package that say what it is given for an operator. Other backends read the operators themselves:
their tables hold for their version."""
_REGISTERS = frozenset({"contributed", "emitter", "lowering", "operator"})
"""Decorators that register a function for an operator."""
_HEX = 12
_UNSAID = frozenset({"annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_ignores"})
"""Fields of syntax trees on which no answer depends."""
Names = Mapping[str, str]
"""Local variables and what a digest calls them."""
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def digests(backend: str, package: Path = _PACKAGE) -> dict[str, str]:
    """Each file that the backend's table rests on, relative to the package, with its digest now."""
    return {name: digest(path.read_text(encoding="utf-8")) for name, path in _files(backend, package).items()}


def _files(backend: str, package: Path) -> dict[str, Path]:
    paths = sorted({path for pattern in RESTS_ON.get(backend, ()) for path in package.glob(pattern)})
    return {str(path.relative_to(package)): path for path in paths}


def digest(source: str) -> str:
    """Of a file of Python: what it says, whatever its comments, docstrings, annotations, line breaks and names of variables."""
    return hashlib.sha256("\n".join(_words(ast.parse(source), {})).encode()).hexdigest()[:_HEX]


def _words(node: ast.AST, names: Names) -> Iterator[str]:
    """The tree in order. Equal in all versions of Python: fields that are empty are left out."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, Scope):
        names = _within(node, names)
    elif isinstance(node, ast.ClassDef):
        stored = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        names = {name: number for name, number in names.items() if name not in stored}
    yield "Assign" if isinstance(node, ast.AnnAssign) and node.value is not None else type(node).__name__
    for field, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        if field in _UNSAID or value is None or not parts:
            continue
        yield "targets" if field == "target" and isinstance(node, ast.AnnAssign) else field
        for part in parts:
            if isinstance(part, ast.AST):
                yield from _words(part, names)
            elif isinstance(part, str) and not isinstance(node, (ast.Constant, ast.Attribute, ast.keyword)):
                yield names.get(part, part)
            else:
                yield repr(part)
    yield "."


def _within(scope: Scope, names: Names) -> Names:
    """The names as a function has them: its own variables are numbers; its parameters, by which it may be called, stay."""
    arguments = scope.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    kept = {argument.arg for argument in given if argument is not None}
    own: dict[str, str] = {}
    waiting: list[ast.AST] = list(reversed(scope.body)) if isinstance(scope.body, list) else [scope.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            kept.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.setdefault(node.id, f"%{len(names) + len(own)}")
        if not isinstance(node, (Scope, ast.ClassDef)):
            waiting += reversed(list(ast.iter_child_nodes(node)))
    return {name: number for name, number in {**names, **own}.items() if name not in kept}


def changed(found: CapabilityTable, package: Path = _PACKAGE) -> list[str]:
    """The files that a table rests on and that are not as they were when it was made, or came, or went."""
    now = digests(found.backend, package)
    return sorted(name for name in {*now, *found.lowerings} if now.get(name) != found.lowerings.get(name))


def changed_operators(found: CapabilityTable, package: Path = _PACKAGE) -> frozenset[str] | None:
    """The operators of which a table may say something else today; None for all of them.

    A file that registers operators decides about those that it names, and about those of files that import it. Where another file
    has changed, or where one that registers nothing calls it, any operator may be concerned.
    """
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in _files(found.backend, package).items()}
    families = {name for name, tree in trees.items() if any(map(_registers, ast.walk(tree)))}
    uses = {name: _uses(tree, families) for name, tree in trees.items()}
    called = set[str]().union(*(uses[name] for name in trees if name not in families))
    concerned = set(changed(found, package))
    while more := {name for name in families if uses[name] & concerned} - concerned:
        concerned |= more
    if not concerned <= families - called:
        return None
    return frozenset(name for file in concerned for name in _operators(trees[file]))


def _registers(node: ast.AST) -> bool:
    calls = [call.func for call in getattr(node, "decorator_list", ()) if isinstance(call, ast.Call)]
    return any(
        (call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")) in _REGISTERS for call in calls
    )


def _operators(tree: ast.AST) -> Iterator[str]:
    """Names of operators in a file's texts; of ONNX's own, and of others that are registered."""
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (word for word in node.value.split() if word in known)


def _uses(tree: ast.AST, families: set[str]) -> set[str]:
    """The files out of `families` whose contents a file imports, or reads as attributes of a module."""
    modules: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            at = "/".join(node.module.split(".")[1:])
            used |= families & {f"{at}.py"}
            modules |= {name.asname or name.name: f"{at}/{name.name}.py" for name in node.names}
    reads = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return used | families & {file for name, file in modules.items() if name in reads}
