"""How the source is built, counted over its syntax trees: what exists more than once, what goes in circles, what is long; and how
often its prose uses words of a list (`WORDS`).

    python -m benchmarks.house
    python -m benchmarks.house --json
    python -m benchmarks.house --hold

`--json` gives what stands behind each count too. `--hold` lowers the counts that `tests/benchmarks/test_house.py` holds to those of
today; it never raises one.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bricolage"
HELD = ROOT / "tests" / "benchmarks" / "house.json"
LONG_FUNCTION = 60
LONG_FILE = 400
MANY_PARAMETERS = 7
"""More are too many for a reader to hold; a call with more positional arguments cannot be read at all."""
_GIVEN = ("operator", "contributed", "emitter", "lowering", "rule", "guard_command", "app.command")
"""Decorators of functions whose names and parameters are given from outside: of an operator, or of a command."""
_LISTS_CHANGES = 3
"""A definition that names so many of the changes that can be asked about is a place that a new one has to touch."""
_JOBS = "cluster/engines"
"""It starts what users submit, commands as they stand. They are no workers of ours, which are a system."""
_BROAD = ("Exception", "BaseException")
_FILLERS = frozenset({"one", "found", "made", "told", "some", "own", "known"})
"""Names of locals that say nothing of what they hold."""
_SIMULATOR = re.compile(r"simulat(e|or|ion)", re.IGNORECASE)
_RACE = re.compile(r"_?(race|turns|take_turns)")
WORDS: Mapping[str, re.Pattern[str]] = {
    words: re.compile(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), re.IGNORECASE)
    for words, pattern in {
        "beside": "beside|besides",
        "at hand": "at hand",
        "nobody": "nobody|somebody|whoever",
        "stands for": "stands? for|stood for",
        "so many": "so many|so much|as many again|as much again",
        "to grief": "(?:comes?|came) to grief",
        "foreseen": "foresee|foresees|foreseen|foreseeing",
        "keeper": "keepers?",
    }.items()
}
"""Words that a reader has to translate; the term of the field, or a number, says the same."""


@dataclass
class Module:
    """What one file holds, in the terms of the counts."""

    name: str
    """With dots, as it is imported; a package has the name of its folder."""
    package: bool
    path: str
    lines: int
    imports: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """(module, names that are taken from it), those below functions and for types alone included."""
    classes: list[str] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, first line, number of lines)."""
    public_functions: list[str] = field(default_factory=list)
    many_parameters: list[str] = field(default_factory=list)
    """Functions with more than `MANY_PARAMETERS`."""
    many_positional: list[str] = field(default_factory=list)
    """Calls with more positional arguments than that."""
    broad_excepts: list[str] = field(default_factory=list)
    filler_locals: list[str] = field(default_factory=list)
    """Functions with a local whose name says nothing (`_FILLERS`)."""
    anys: int = 0
    processes: bool = False
    """Whether it starts processes that it goes on speaking to."""
    definitions: list[ast.stmt] = field(default_factory=list)
    """Of a file about training; trees of all files are too much for the garbage collector."""


def read(source: Path = SOURCE) -> list[Module]:
    """The modules of a package, by name."""
    found = [_module(path, source) for path in sorted(source.rglob("*.py"))]
    return sorted(found, key=lambda one: one.name)


def _module(path: Path, source: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    parts = path.relative_to(source.parent).with_suffix("").parts
    package = parts[-1] == "__init__"
    found = Module(
        ".".join(parts[:-1] if package else parts),
        package,
        path.relative_to(source).as_posix(),
        text.count("\n"),
        definitions=tree.body if "train" in parts else [],
    )
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="Any"):
                found.anys += 1
            case ast.Call(func=ast.Attribute(value=ast.Name(id="subprocess"), attr="Popen")):
                found.processes = True
            case ast.ClassDef(name=name):
                found.classes.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.functions.append((name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1))
                if fillers := _list_fillers(node):
                    found.filler_locals.append(f"{found.path}:{node.lineno} {name} {' '.join(fillers)}")
                if not _is_given(node) and (count := _count_parameters(node)) > MANY_PARAMETERS:
                    found.many_parameters.append(f"{found.path}:{node.lineno} {name} {count}")
            case ast.Call(args=arguments) if (count := _count_positional(arguments)) > MANY_PARAMETERS:
                found.many_positional.append(f"{found.path}:{node.lineno} {count}")
            case ast.ExceptHandler(type=caught) if caught is None or ast.unparse(caught) in _BROAD:
                found.broad_excepts.append(f"{found.path}:{node.lineno}")
            case ast.Import(names=names):
                found.imports += [(one.name, ()) for one in names]
            case ast.ImportFrom(module=str(name), names=names, level=0):
                found.imports.append((name, tuple(one.name for one in names)))
            case _:
                pass
    found.public_functions = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_given(node)
    ]
    found.processes |= any(name.partition(".")[0] == "multiprocessing" for name, _ in found.imports)
    return found


def _list_fillers(node: ast.AST) -> list[str]:
    """Locals of a function that are called by a filler."""
    stores = (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store))
    return sorted(_FILLERS.intersection(stores))


def _is_given(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether its name and its parameters are not ours to choose."""
    names = (ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list)
    return any(name == given or name.endswith(f".{given}") for name in names for given in _GIVEN)


def _count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without `self` and `cls`."""
    given = node.args
    named = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")]
    return len(named) + (given.vararg is not None) + (given.kwarg is not None)


def _count_positional(arguments: Sequence[ast.expr]) -> int:
    """Without rows that are unpacked."""
    return sum(not isinstance(argument, ast.Starred) for argument in arguments)


def arrows(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Module → the modules of the package that it imports. `from a import b` leads to `a.b` where that is a module."""
    all_ = {one.name for one in modules}
    found: dict[str, set[str]] = {}
    for one in modules:
        targets = set[str]()
        for name, taken in one.imports:
            inner = {f"{name}.{part}" for part in taken} & all_
            outer = {name} & all_ if len(inner) < max(1, len(taken)) else set()
            targets |= inner | outer
        found[one.name] = targets - {one.name}
    return found


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one module (Tarjan, "Depth-First Search and Linear Graph Algorithms", 1972)."""
    index, low, stack, found = dict[str, int](), dict[str, int](), list[str](), list[list[str]]()

    def visit(one: str) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in sorted(arrows[one]):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            at = stack.index(one)
            part = stack[at:]
            del stack[at:]
            if len(part) > 1:
                found.append(sorted(part))

    for one in sorted(arrows):
        if one not in index:
            visit(one)
    return sorted(found)


def _own(modules: Iterable[Module], name: re.Pattern[str]) -> list[str]:
    """Files with a function or class of such a name that take none from another file."""
    found = []
    for one in modules:
        has = any(name.fullmatch(own) for own in [*one.classes, *(function for function, _, _ in one.functions)])
        takes = any(name.fullmatch(taken) for _, names in one.imports for taken in names)
        if has and not takes:
            found.append(one.path)
    return found


def _strings(tree: ast.AST) -> Iterator[str]:
    """String constants, docstrings left out."""
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def what_if_places(modules: Iterable[Module]) -> list[str]:
    """Definitions that list the changes of a training step by name: those that a new change has to touch.

    The changes are the fields of `Variant`. The class is a place; another is whatever has three of their names in its strings.
    """
    found = [(one, node) for one in modules for node in one.definitions]
    owner = next(node for _, node in found if isinstance(node, ast.ClassDef) and node.name == "Variant")
    names = {
        node.target.id for node in owner.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    places = []
    for one, node in found:
        words = {word for text in _strings(node) for word in re.findall(r"\w+", text)}
        if node is owner or len(words & names) >= _LISTS_CHANGES:
            places.append(f"{one.path}:{node.lineno}")
    return places


def pages(root: Path = ROOT) -> list[Path]:
    """Files whose prose is read: the sources, and the pages that are not generated."""
    single = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")]
    written = [
        path for path in sorted((root / "docs").rglob("*.md")) if "log" not in path.parts and path.name != "errors.md"
    ]
    return [*sorted((root / "src").rglob("*.py")), *written, *single]


def words(texts: Iterable[str]) -> dict[str, int]:
    """How often each of `WORDS` occurs."""
    found = dict.fromkeys(WORDS, 0)
    for text in texts:
        for name, pattern in WORDS.items():
            found[name] += len(pattern.findall(text))
    return found


@dataclass(frozen=True)
class House:
    """Counts, and what stands behind each."""

    files: int
    lines: int
    anys: int
    """Uses of `Any`."""
    lists: Mapping[str, tuple[str, ...]]
    words: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Those that may only fall."""
        found = {name: len(found) for name, found in self.lists.items()} | {"any": self.anys}
        return found | {f"word: {name}": count for name, count in self.words.items()}

    @property
    def any_per_1000(self) -> float:
        """Uses of `Any` in a thousand lines. It is not held: to delete other lines makes it worse."""
        return round(1000 * self.anys / max(1, self.lines), 1)


def survey(modules: Sequence[Module], prose: Iterable[Path] = ()) -> House:
    """All counts of a package, and of the words on the pages of `prose`."""
    owners = defaultdict[str, set[str]](set)
    for one in modules:
        for name in one.classes:
            if not name.startswith("_"):
                owners[name].add(one.path)
    lines = sum(one.lines for one in modules)
    functions = [(size, f"{one.path}:{at} {name}") for one in modules for name, at, size in one.functions]
    lists = {
        "simulators": _own(modules, _SIMULATOR),
        "links": [one.path for one in modules if "Link" in one.classes],
        "races": _own(modules, _RACE),
        "process_systems": sorted({str(Path(one.path).parent) for one in modules if one.processes} - {_JOBS}),
        "circles": [" ".join(one) for one in circles(arrows(modules))],
        "double_class_names": [
            f"{name}: {' '.join(sorted(files))}" for name, files in sorted(owners.items()) if len(files) > 1
        ],
        "long_functions": [
            f"{where} {size}" for size, where in sorted(functions, reverse=True) if size > LONG_FUNCTION
        ],
        "long_files": [
            f"{one.path} {one.lines}" for one in sorted(modules, key=lambda one: -one.lines) if one.lines > LONG_FILE
        ],
        "what_if_places": what_if_places(modules),
        "rooms": _rooms(modules),
        "double_file_names": _doubled((Path(one.path).name, one.path) for one in modules if not one.package),
        "double_function_names": _doubled((name, one.path) for one in modules for name in one.public_functions),
        "many_parameters": [where for one in modules for where in one.many_parameters],
        "many_positional_arguments": [where for one in modules for where in one.many_positional],
        "broad_excepts": [where for one in modules for where in one.broad_excepts],
        "filler_locals": [where for one in modules for where in one.filler_locals],
    }
    return House(
        len(modules),
        lines,
        sum(one.anys for one in modules),
        {name: tuple(found) for name, found in lists.items()},
        words(path.read_text(encoding="utf-8") for path in prose),
    )


def _rooms(modules: Iterable[Module]) -> list[str]:
    """What lies at the top: packages, and modules that are in none."""
    return sorted({one.name.split(".")[1] for one in modules if "." in one.name})


def _doubled(places: Iterable[tuple[str, str]]) -> list[str]:
    """Names that stand in two files or more, with the files."""
    files = defaultdict[str, set[str]](set)
    for name, path in places:
        files[name].add(path)
    return [f"{name}: {' '.join(sorted(paths))}" for name, paths in sorted(files.items()) if len(paths) > 1]


def lowered(held: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """The lower of both of each count; new counts as they are now, and those that are gone left out."""
    return {name: min(value, held.get(name, value)) for name, value in now.items()}


def main() -> int:
    """Prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="with what stands behind each count")
    parser.add_argument("--hold", action="store_true", help="lower the counts that the test holds to those of today")
    given = parser.parse_args()
    house = survey(read(), pages())
    if given.hold:
        held = json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else {}
        HELD.write_text(json.dumps(lowered(held, house.counts), indent=1) + "\n", encoding="utf-8")
    if given.json:
        told: dict[str, object] = {"files": house.files, "lines": house.lines, **house.counts}
        told |= {"any_per_1000": house.any_per_1000, "lists": house.lists}
        print(json.dumps(told, indent=1))
        return 0
    print(f"{house.files} files, {house.lines} lines, `Any` {house.any_per_1000} times in 1,000 of them")
    for name, value in house.counts.items():
        print(f"\n{name.replace('_', ' ')}: {value}")
        for line in house.lists.get(name, ()):
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
