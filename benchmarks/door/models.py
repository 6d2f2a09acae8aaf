"""Cases of a file: small models that a user may bring, and what becomes of each."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.door.processes import tell
from bricolage.api.optimize import optimize
from bricolage.base.options import Options
from bricolage.conformance.expected_outputs import difference
from bricolage.driver.context import open_pool
from bricolage.errors import BricolageError
from bricolage.measure.pool import Pool
from bricolage.runtime.load import load

_RTOL, _ATOL = 1e-3, 1e-4


def read(path: Path) -> Mapping[str, Any]:
    """The cases of a Python file: `CASES[name].make()` gives a model, inputs by name and, where there are any, options: `want`
    (right outputs; those of ONNX Runtime by default), `rtol`, `shapes` (as `--shape` takes them), `also` (inputs of other sizes).

    Raises:
        SystemExit: there is no such file.
    """
    spec = importlib.util.spec_from_file_location("door_cases", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Mapping[str, Any] = module.CASES
    return found


def sizes(given: Mapping[str, Any]) -> dict[str, int]:
    """Of open dimensions, as a case's options give them."""
    return {name: int(size) for name, size in (text.split("=") for text in given.get("shapes", ()))}


def tried(path: Path, names: Sequence[str], budget_s: float, folder: Path) -> None:
    """Tells of each case what came of it: "right", "refused" (with a sentence), "wrong" or "broken"."""
    found, options = read(path), Options(budget_s=budget_s)
    with open_pool(options) as pool:
        for name in names:
            try:
                model, inputs, *more = found[name].make()
                given: Mapping[str, Any] = more[0] if more else {}
                wrong = _answer(model, inputs, given, options, folder / f"{name}.bric", pool)
                tell(name, "wrong" if wrong else "right", wrong or "")
            except BricolageError as error:
                tell(name, "refused", str(error))
            except Exception as error:  # whatever else is raised is a row here
                tell(name, "broken", f"{type(error).__name__}: {error}")


def _answer(
    model: Any, inputs: Mapping[str, Any], given: Mapping[str, Any], options: Options, path: Path, pool: Pool
) -> str | None:
    """Optimises, writes, loads and runs; what is wrong with the answer."""
    optimize(model, options, inputs=dict(inputs), shapes=sizes(given), pool=pool).save(path)
    fast = load(path)
    order = [value.name for value in model.graph.output]
    for feeds in (inputs, *given.get("also", ())):
        answers = fast.run(dict(feeds))
        wanted = given["want"] if "want" in given and feeds is inputs else _by_onnxruntime(model, feeds)
        found = [answers[name] for name in order]
        if wanted is not None and (wrong := difference(wanted, found, given.get("rtol", _RTOL), _ATOL)):
            return wrong
    return None


def _by_onnxruntime(model: Any, feeds: Mapping[str, Any]) -> list[Any] | None:
    """Its outputs without its optimisations; None where it does not run the model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [value if isinstance(value, list) else np.asarray(value) for value in session.run(None, dict(feeds))]
    except Exception:  # it has no common exception
        return None
