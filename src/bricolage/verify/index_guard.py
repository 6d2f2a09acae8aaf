"""Whether a region's inputs are such that no operator reads or writes outside of a tensor, known before it runs.

Where the indices come from is followed back to the inputs (`verify.value_ranges`). Most are shown to be right for any input; for
the others the least and the largest element of the inputs that they rest on decide, as far as these show it. What they do not show
is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bricolage.errors import IndexBeyond, NoReference
from bricolage.graph.graph import find_captured
from bricolage.verify.index_uses import IndexUse, index_uses
from bricolage.verify.reference import Evaluator
from bricolage.verify.value_ranges import Ranges
from bricolage.work.values import ModelValue

Ends = tuple[float, float]


class IndexGuard:
    """The indices in a model that inputs may put outside of a tensor.

    Args:
        model: with types and shapes inferred.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        top_uses, within, self._owners = index_uses(model.graph)
        self._uses: list[IndexUse] = []
        self.unchecked: list[IndexUse] = []
        """Those that rest on what no input shows: they would have to be looked at while the region runs."""
        nothing = Ranges({}, self._owners)
        leaves: dict[str, None] = {}
        for use in [use for use in (*top_uses, *within) if not use.holds(nothing.of(use.value))]:
            asked = Ranges(_Zeros(), self._owners)
            if use in within or not asked.of(use.value).known or not all(low <= high for low, high in use.limits):
                self.unchecked.append(use)
            else:
                self._uses.append(use)
                leaves.update(asked.leaves)
        self.leaves = tuple(leaves)
        """Names of the inputs that decide."""
        self.shown: dict[str, Ends] = {}
        """Ends between which the elements of these inputs are surely right; none where that is not known of any yet."""

    @property
    def empty(self) -> bool:
        """Whether nothing has to be looked at."""
        return not self._uses

    def check(self, arrays: Mapping[str, ModelValue]) -> None:
        """Looks at inputs. What it finds right is remembered in `shown`.

        Raises:
            IndexBeyond: an operator would read or write outside of a tensor.
        """
        ends = {name: _ends(np.asarray(arrays[name])) for name in self.leaves}
        if not self._shows(ends):
            self._check_indices(arrays)
            return
        most = max((high for use in self._uses for _, high in use.limits), default=0.0)
        hulls = {name: _hull(ends[name], self.shown.get(name)) for name in ends}
        wide = {name: (min(low, 0.0), max(high, most)) for name, (low, high) in hulls.items()}
        from_zero = {name: (min(low, 0.0), high) for name, (low, high) in hulls.items()}
        self.shown = next((candidate for candidate in (wide, from_zero, hulls) if self._shows(candidate)), ends)

    def find_widest(self) -> dict[str, Ends]:
        """Ends between which the elements of all `leaves` are surely right, the widest that the limits suggest; empty where these
        do not show it."""
        least = min((low for use in self._uses for low, _ in use.limits), default=0.0)
        most = max((high for use in self._uses for _, high in use.limits), default=0.0)
        tried = [dict.fromkeys(self.leaves, ends) for ends in ((least, most), (0.0, most))]
        return next((ends for ends in tried if self._shows(ends)), {})

    def _shows(self, ends: Mapping[str, Ends]) -> bool:
        ranges = Ranges(ends, self._owners)
        return all(np.isfinite(end).all() for end in ends.values()) and all(
            use.holds(ranges.of(use.value)) for use in self._uses
        )

    def _check_indices(self, arrays: Mapping[str, ModelValue]) -> None:
        """Computes the indices, and looks at each."""
        values, model = self._part
        given = {value.name or "": arrays[value.name or ""] for value in model.graph.inputs}
        try:
            computed = Evaluator(
                model, dtype=np.float32, library="onnx", keep=[name for name in values if name not in given]
            )(given)
        except NoReference as error:
            use = self._uses[0]
            raise self._beyond(use, "an index", *use.limits[0]) from error
        for use in self._uses:
            name = use.value.name or ""
            wrong = use.offender(np.asarray(given[name] if name in given else computed[name]))
            if wrong is not None:
                raise self._beyond(use, *wrong)

    def _beyond(self, use: IndexUse, index: object, least: float, most: float) -> IndexBeyond:
        asked = Ranges({}, self._owners)
        asked.of(use.value)
        inputs = ", ".join(f"'{name}'" for name in asked.leaves)
        return IndexBeyond(
            index=index, name=use.node.name, op_type=use.node.op_type, least=int(least), most=int(most), inputs=inputs
        )

    @cached_property
    def _part(self) -> tuple[list[str], ir.Model]:
        """Names of the indices, and a model of what computes them alone."""
        wanted = list(dict.fromkeys(use.value for use in self._uses))
        needed, reads = _behind(wanted)
        graph = self._model.graph
        view = ir.GraphView(
            [value for value in graph.inputs if value in reads and value.name not in graph.initializers],
            [value for value in wanted if value.producer() is not None],
            nodes=[node for node in graph if node in needed],
            initializers=[value for value in graph.initializers.values() if value in reads],
            opset_imports=dict(graph.opset_imports),
            name="indices",
        )
        return [value.name or "" for value in wanted], ir.Model(view.clone(), ir_version=self._model.ir_version)


class _Zeros(dict[str, Ends]):
    """Every input in a range of nothing but zero: what has no end then, no input shows."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Ends:
        return 0.0, 0.0


def _behind(values: Sequence[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]]:
    """The operators that values come from, and all that is read there."""
    needed: set[ir.Node] = set()
    reads: set[ir.Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value in reads:
            continue
        reads.add(value)
        node = value.producer()
        if node is not None and node not in needed:
            needed.add(node)
            todo += [source for source in (*node.inputs, *find_captured(node)) if source is not None]
    return needed, reads


def _ends(array: np.ndarray) -> Ends:
    if array.dtype.kind not in "biuf" or not array.size:
        return 0.0, 0.0
    return float(array.min()), float(array.max())


def _hull(one: Ends, other: Ends | None) -> Ends:
    return one if other is None else (min(one[0], other[0]), max(one[1], other[1]))
