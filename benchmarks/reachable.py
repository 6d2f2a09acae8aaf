"""Which public functions and classes no command reaches, over the syntax trees of the source.

    python -m benchmarks.reachable
    python -m benchmarks.reachable --packages bricolage.search,bricolage.train --json

A definition is reached where the body of something reached names it, through imports at the top or inside of functions; of a class
that is reached, all methods are. Importing a module reaches what its body runs. A string "module" or
"module:function" reaches these: workers are started so. Nothing is run.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGES = ("bricolage.search", "bricolage.train", "bricolage.cluster")
"""Where a mechanism without a command is no product."""
ROOTS = ("bricolage.cli", "bricolage.__main__", "bricolage.train.__main__")
"""What is started by name: the commands, and `python -m`."""
_BODY = ""
"""Name of what a module runs when it is imported."""
Symbol = tuple[str, str]
"""A module and one of its names; the empty name is the module's body."""
_STANDARD = frozenset(
    {
        "dataclass",
        "dataclasses",
        "cache",
        "lru_cache",
        "functools",
        "contextmanager",
        "asynccontextmanager",
        "contextlib",
        "runtime_checkable",
        "overload",
        "final",
        "unique",
        "total_ordering",
        "True",
        "False",
        "field",
    }
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class ModuleSource:
    """The syntax tree of a module, and what its names mean."""

    name: str
    package: str
    """Of which relative imports go on."""
    tree: ast.Module
    imports: dict[str, Symbol] = field(default_factory=dict)
    """Local name → what it was imported from, wherever in the module."""

    @cached_property
    def definitions(self) -> Mapping[str, Sequence[ast.stmt]]:
        """The statements that define each name at the top level."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in _flatten(self.tree.body):
            for name in _names_defined(statement):
                found.setdefault(name, []).append(statement)
        return found

    @property
    def public(self) -> list[str]:
        """Functions and classes without an underscore."""
        return [
            name
            for name, statements in self.definitions.items()
            if not name.startswith("_") and any(isinstance(statement, _Definition) for statement in statements)
        ]


class ReachedSymbols:
    """What the roots reach."""

    def __init__(self, modules: Mapping[str, ModuleSource], roots: Iterable[str] = ROOTS) -> None:
        """`roots`: modules, or packages, of which everything counts as reached."""
        self.modules = modules
        self.symbols: set[Symbol] = set()
        self._waiting: list[Symbol] = []
        for name, module in modules.items():
            if any(name == root or name.startswith(f"{root}.") for root in roots):
                self._reach((name, _BODY))
                for symbol in module.definitions:
                    self._reach((name, symbol))
        while self._waiting:
            self._visit(self._waiting.pop())

    def list_unreached(self, packages: Iterable[str] = PACKAGES) -> list[Symbol]:
        """Public functions and classes of these packages."""
        return sorted(
            (name, symbol)
            for name, module in self.modules.items()
            if any(name == package or name.startswith(f"{package}.") for package in packages)
            for symbol in module.public
            if (name, symbol) not in self.symbols
        )

    def _reach(self, symbol: Symbol) -> None:
        symbol = self._resolve(symbol)
        if symbol[0] in self.modules and symbol not in self.symbols:
            self.symbols.add(symbol)
            self._waiting.append(symbol)

    def _resolve(self, symbol: Symbol) -> Symbol:
        """Through modules that only pass a name on."""
        for _ in range(10):
            name, attribute = symbol
            if attribute and f"{name}.{attribute}" in self.modules:
                return f"{name}.{attribute}", _BODY
            module = self.modules.get(name)
            if module is None or not attribute or attribute in module.definitions or attribute not in module.imports:
                break
            symbol = module.imports[attribute]
        return symbol

    def _visit(self, symbol: Symbol) -> None:
        name, attribute = symbol
        module = self.modules[name]
        parent, _, _ = name.rpartition(".")
        if parent in self.modules:
            self._reach((parent, _BODY))
        self._reach((name, _BODY))
        if attribute == _BODY:
            for statement in _flatten(module.tree.body):
                if isinstance(statement, _Definition) and _is_registered(statement):
                    self._reach((name, statement.name))
                elif not isinstance(statement, _Definition | ast.Assign | ast.AnnAssign) or _calls(statement):
                    self._follow(module, [statement])
        else:
            self._follow(module, module.definitions.get(attribute, ()))

    def _follow(self, module: ModuleSource, nodes: Iterable[ast.AST]) -> None:
        for node in (inner for outer in nodes for inner in ast.walk(outer)):
            if isinstance(node, ast.Name):
                if node.id in module.definitions:
                    self._reach((module.name, node.id))
                elif node.id in module.imports:
                    self._reach(module.imports[node.id])
            elif isinstance(node, ast.Attribute):
                target = self._module_named(module, node.value)
                if target is not None:
                    self._reach((target, node.attr))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for target in _imported_modules(module, node):
                    self._reach((target, _BODY))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name, _, attribute = node.value.partition(":")
                if name.endswith(".py"):  # of a program that lies beside
                    name = f"{module.package}.{name.removesuffix('.py')}"
                if name in self.modules:
                    self._reach((name, attribute if attribute.isidentifier() else _BODY))

    def _module_named(self, module: ModuleSource, node: ast.expr) -> str | None:
        """The module that an expression is, as far as imports say."""
        if isinstance(node, ast.Name) and node.id in module.imports:
            name, attribute = self._resolve(module.imports[node.id])
            return name if attribute == _BODY and name in self.modules else None
        if isinstance(node, ast.Attribute):
            parent = self._module_named(module, node.value)
            return f"{parent}.{node.attr}" if parent is not None and f"{parent}.{node.attr}" in self.modules else None
        return None


def read_sources(root: Path = SOURCE, package: str = "bricolage") -> dict[str, ModuleSource]:
    """All modules of a package, by name."""
    modules = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ModuleSource(name, name if is_package else name.rpartition(".")[0], tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    module.imports[alias.asname or target] = (target, _BODY)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module.imports[alias.asname or alias.name] = (_origin(module, node), alias.name)
        modules[name] = module
    return modules


def _origin(module: ModuleSource, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _imported_modules(module: ModuleSource, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    origin = _origin(module, node)
    yield origin
    yield from (f"{origin}.{alias.name}" for alias in node.names)


def _flatten(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at the top level, those under `if` and `try` included."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield ast.Expr(statement.test)
            yield from _flatten([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _flatten([*statement.body, *(s for h in statement.handlers for s in h.body), *statement.orelse])
        else:
            yield statement


def _names_defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, _Definition):
        return [statement.name]
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _calls(statement: ast.stmt) -> bool:
    """Whether an assignment computes something; one that does not is reached by its name."""
    return not isinstance(statement, _Definition) and any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _is_registered(statement: _Definition) -> bool:
    """Whether a decorator of ours enters it somewhere; those of the standard library only change it."""
    names = {node.id for d in statement.decorator_list for node in ast.walk(d) if isinstance(node, ast.Name)}
    return bool(names - _STANDARD)


def main() -> int:
    """Prints what no command reaches; the exit code is 1 where there is something."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reachable", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--packages", default=",".join(PACKAGES), help="by commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    unreached = ReachedSymbols(read_sources()).list_unreached(arguments.packages.split(","))
    if arguments.json:
        print(json.dumps([{"module": module, "name": name} for module, name in unreached]))
    else:
        for module, name in unreached:
            print(f"{module}.{name}")
        print(f"{len(unreached)} public functions and classes that no command reaches")
    return 1 if unreached else 0


if __name__ == "__main__":
    raise SystemExit(main())
