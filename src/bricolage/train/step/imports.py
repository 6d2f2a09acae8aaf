"""Imports of the Python that a spec names: its folder is searched first, as a script's is."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from bricolage.base.undo import undo_on_failure

_first = ""
"""The folder of the spec whose Python runs; it stands first in `sys.path`."""
_had: set[str] = set()
"""Folders that have been first."""


def search_first(folder: str) -> None:
    """Puts a spec's folder before all others, in the place of the spec's before. Modules that came from folders of other specs are
    forgotten where this one has some of the same name."""
    global _first
    place = str(Path(folder).resolve())
    if place == _first and place in sys.path:
        return
    if _first in sys.path:
        sys.path.remove(_first)
    sys.path.insert(0, place)
    _first = place
    others = _had - {place}
    _had.add(place)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not file or _home(file) not in others:
            continue
        if Path(place, f"{name}.py").is_file() or Path(place, name, "__init__.py").is_file():
            for part in [
                module_name for module_name in sys.modules if module_name == name or module_name.startswith(f"{name}.")
            ]:
                del sys.modules[part]


def search_path() -> str:
    """`PYTHONPATH` for processes that run the same spec: without its folder, which they put first themselves, so that a file of it
    does not take the place of a module that they start with."""
    places = [entry for entry in sys.path if entry]
    if _first in places:
        places.remove(_first)
    return os.pathsep.join(places)


def file_as_module(path: Path) -> object:
    """A Python file as a module, run once in a process, so that two names of it, and an import by a file in its folder, share
    what it holds. Whatever running it raises passes through."""
    name = f"bricolage_user_{path.stem}_{abs(hash(path.resolve())):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file '{path}'")
    importable = str(path.resolve().parent) == _first and path.stem not in sys.stdlib_module_names
    if importable and path.stem in sys.modules:
        loaded_module = sys.modules[path.stem]
        if Path(getattr(loaded_module, "__file__", None) or "").resolve() == path.resolve():
            sys.modules[name] = loaded_module
            return loaded_module
        importable = False  # a module of another place has the name, and others may need that
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    names = [name, path.stem] if importable else [name]
    sys.modules.update(dict.fromkeys(names, module))
    with undo_on_failure(lambda: [sys.modules.pop(each, None) for each in names]):
        spec.loader.exec_module(module)
    return module


def _home(file: str) -> str:
    """The folder from which a module or package of that file is imported."""
    path = Path(file)
    return str(path.parent.parent if path.name == "__init__.py" else path.parent)
