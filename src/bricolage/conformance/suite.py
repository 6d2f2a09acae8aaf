"""The cases of the ONNX backend test suite, with their data as numpy values."""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bricolage.conformance.quick_import import quick_import

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
"""Single operators and their expansions; small models; models that PyTorch exported at opset 6; networks, with made-up weights."""
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True, eq=False)
class Case:
    """One model with inputs and expected outputs, in the order of the graph. Values are numpy arrays, lists of them for
    sequences, or None for an empty optional."""

    name: str
    model: onnx.ModelProto = field(repr=False)
    inputs: tuple[object, ...] = field(repr=False)
    outputs: tuple[object, ...] = field(repr=False)
    rtol: float
    atol: float
    kind: str = "node"
    """One of `KINDS`."""

    @property
    def single(self) -> bool:
        """Whether the model is one operator, so that its outcome says something about that operator."""
        return len(self.model.graph.node) == 1 and not self.model.functions

    @property
    def defines(self) -> str | None:
        """The name of the case whose operator this one has as a graph of other operators; None where it is no definition."""
        name_match = re.fullmatch(r"(.*)_expanded(_ver\d+)?", self.name)
        return name_match[1] if name_match else None


def tenth(found: Iterable[Case]) -> list[Case]:
    """A fixed tenth of cases, chosen by their names alone."""
    return [case for case in found if zlib.crc32(case.name.encode()) % 10 == 0]


def suite_cases(
    operators: Collection[str] | None = None, kinds: Collection[str] = KINDS, *, expansions: bool = False
) -> list[Case]:
    """All cases of some kinds, sorted by name, or only those of one operator among `operators` (names of operator types), with
    `expansions` also the graphs of other operators by which ONNX defines these.

    The suite computes its data when its modules are imported: some two seconds for all, tenths of a second for a few
    operators, of which only the modules that mention them are imported.
    """
    from onnx.backend.test.loader import load_model_tests

    cases: list[Case] = []
    state = np.random.get_state()  # noqa: NPY002 - the suite seeds numpy's own generator, which is the caller's
    with warnings.catch_warnings(), quick_import():
        warnings.simplefilter("ignore")
        for kind in kinds:
            chosen = kind == "node" and operators is not None
            for test in _node_tests(operators or ()) if chosen else load_model_tests(kind=kind):
                read = _read_in_memory if test.model is not None else _read if test.model_dir is not None else _network
                model, inputs, outputs = read(test)
                cases.append(Case(test.name, model, inputs, outputs, test.rtol, test.atol, kind))
    np.random.set_state(state)  # noqa: NPY002
    if operators is not None:
        single = {case.name for case in cases if case.single and case.model.graph.node[0].op_type in operators}
        wanted = single | {case.name for case in cases if expansions and case.defines in single}
        cases = [case for case in cases if case.name in wanted]
    return sorted(cases, key=lambda case: case.name)


def _node_tests(operators: Collection[str]) -> list[Any]:
    """The tests of the modules whose text mentions one of the operators, and of those that were imported before."""
    from onnx.backend.test.case import node

    node_tests: list[Any] = node._NodeTestCases  # what the suite's loader returns after it has imported everything
    for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
        path = Path(module.module_finder.path) / f"{module.name.rpartition('.')[2]}.py"  # type: ignore[union-attr]
        if path.is_file() and any(f'"{name}"' in path.read_text(encoding="utf-8") for name in operators):
            importlib.import_module(module.name)
    return node_tests


_Contents = tuple[onnx.ModelProto, tuple[object, ...], tuple[object, ...]]


def _read_in_memory(test: object) -> _Contents:
    (inputs, outputs) = test.data_sets[0]  # type: ignore[attr-defined]
    return test.model, tuple(map(_value, inputs)), tuple(map(_value, outputs))  # type: ignore[attr-defined]


def _read(test: object) -> _Contents:
    folder = Path(test.model_dir)  # type: ignore[attr-defined]
    model = onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"

    def values(stem: str, infos: list[onnx.ValueInfoProto]) -> tuple[object, ...]:
        return tuple(
            _parse((data / f"{stem}_{i}.pb").read_bytes(), infos[i].type)
            for i in range(len(list(data.glob(f"{stem}_*.pb"))))
        )

    return model, values("input", list(model.graph.input)), values("output", list(model.graph.output))


def _network(test: object) -> _Contents:
    """One of the networks that the package holds without their weights, on the ramp that the suite gives it."""
    path = _DATA / "light" / Path(test.url).name  # type: ignore[attr-defined]
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    (entering,) = (info for info in model.graph.input if info.name not in constants)
    shape = [size.dim_value or 1 for size in entering.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    ramp = (np.arange(count).reshape(shape) / count).astype(np.float32)
    raw = path.with_name(f"{path.stem}_output_0.pb").read_bytes()
    return model, (ramp,), (_parse(raw, model.graph.output[0].type),)


def _parse(raw: bytes, kind: onnx.TypeProto) -> object:
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
        case _:
            return numpy_helper.to_array(onnx.TensorProto.FromString(raw))


def _value(value: object) -> object:
    match value:
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case list() | tuple():
            return [_value(item) for item in value]
        case None:
            return None
        case _:
            return np.asarray(value)


def detach_initializers(case: Case) -> Case:
    """The case with initializers that are also inputs (models before IR 4) as initializers only."""
    constants = {tensor.name for tensor in case.model.graph.initializer}
    if not constants.intersection(info.name for info in case.model.graph.input):
        return case
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    pairs = list(zip(model.graph.input, case.inputs, strict=False))
    kept = [info for info in model.graph.input if info.name not in constants]
    inputs = tuple(value for info, value in pairs if info.name not in constants)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return replace(case, model=model, inputs=inputs)
