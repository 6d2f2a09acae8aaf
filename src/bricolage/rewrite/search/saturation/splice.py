"""What was extracted for a part, put in the place of the part and of its equals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value
from bricolage.rewrite.builder import GraphBuilder
from bricolage.rewrite.engine.apply import Application
from bricolage.rewrite.rule import MatchFailure
from bricolage.rewrite.search.fingerprint import constant_key
from bricolage.rewrite.search.lazy import expression
from bricolage.rewrite.search.saturation.bridge import give_type, instance
from bricolage.rewrite.search.saturation.part import SaturatedPart
from bricolage.rewrite.search.saturation.terms import ConstantLeaf, InputLeaf, Operation, OutputProjection
from bricolage.rewrite.search.workspace import Workspace


def splice(whole: Workspace, saturated: SaturatedPart, names: Mapping[str, str], outputs: Sequence[str]) -> bool:
    """Puts the extracted graph in the place of one copy of a part; whether that changed anything. `names` says what the
    part's values are called in the whole, `outputs` are those of the part.

    Operators of the copy stay where the extracted graph has them, so that what was not rewritten keeps its names.

    Raises:
        MatchFailure: a constant overflows or cannot be computed; the model is as it was.
    """
    builder = whole.builder()
    decoder = _Decoder(whole, saturated, names, builder)
    try:
        values = decoder.values()
    except MatchFailure:
        builder.discard()
        raise
    pairs = []
    for name, number in zip(outputs, saturated.outputs, strict=True):
        old, new = decoder.there(name), values[number][0]
        if old is not new:
            pairs.append((old, new))
    if not pairs:
        builder.discard()
        return False
    applications = [
        Application(0, applied_rule.rule.name, applied_rule.rule.family, applied_rule.matched, applied_rule.built)
        for applied_rule in saturated.applied
    ]
    whole.graft(pairs, builder, applications)
    return True


class _Decoder:
    def __init__(
        self, whole: Workspace, saturated: SaturatedPart, names: Mapping[str, str], builder: GraphBuilder
    ) -> None:
        self._whole, self._saturated, self._names, self._builder = whole, saturated, names, builder
        self._constants: dict[ConstantLeaf, ir.Value] = {}

    def there(self, name: str) -> ir.Value:
        """The counterpart in the whole of a value of the part."""
        counterpart = self._whole.value(self._names[name])
        if counterpart is None:
            raise MatchFailure(f"'{self._names[name]}' is gone")
        return counterpart

    def values(self) -> dict[int, list[ir.Value]]:
        """What each chosen class is in the whole: one value, or the outputs of an operator of several."""
        values: dict[int, list[ir.Value]] = {}
        for number, node in self._saturated.chosen.items():
            operator = node.operator
            if isinstance(operator, InputLeaf):
                values[number] = [self.there(operator.name)]
            elif isinstance(operator, ConstantLeaf):
                values[number] = [self._constant(self._saturated.encoder.constants[operator])]
            elif isinstance(operator, OutputProjection):
                values[number] = [values[node.children[0]][operator.index]]
            else:
                assert isinstance(operator, Operation)
                sources = [values[self._saturated.encoder.egraph.find(child)][0] for child in node.children]
                kept = self._find_kept_operator(self._saturated.originals.get(node, ()), sources)
                values[number] = list(kept.outputs) if kept is not None else self._build(operator, sources, number)
        return values

    def _find_kept_operator(self, places: Sequence[int], sources: Sequence[ir.Value]) -> ir.Node | None:
        """An operator of the copy that reads just that already."""
        for place in places:
            named = next(name for name in self._saturated.operators[place] if name)
            node = self.there(named).producer()
            if node is not None and [value for value in node.inputs if value is not None] == list(sources):
                return node
        return None

    def _build(self, operation: Operation, sources: Sequence[ir.Value], number: int) -> list[ir.Value]:
        egraph, names = self._saturated.encoder.egraph, self._builder.names
        node = instance(operation, sources)
        node.name = names.fresh(node.op_type)
        for index, value in enumerate(node.outputs):
            value.name = names.fresh(node.op_type.lower()) if operation.outputs[index] else ""
        if len(node.outputs) == 1:
            give_type(node.outputs[0], egraph.data(number))
            shared = node.outputs[0].shape
            node.outputs[0].shape = shared and shared.copy()  # a model's own, which later passes may write
        else:
            for value, model in zip(node.outputs, operation.node.outputs, strict=True):
                value.type, value.shape = model.type, model.shape
        self._builder.nodes.append(node)
        return list(node.outputs)

    def _constant(self, value: ir.Value) -> ir.Value:
        key = ConstantLeaf(constant_key(value))
        if key in self._constants:
            return self._constants[key]
        if key in self._saturated.weights:
            constant = self.there(self._saturated.weights[key])
        else:
            computed = expression(value)
            if computed is None:
                assert value.const_value is not None
                constant = constant_value(self._builder.names.fresh("constant"), value.const_value.numpy())
                self._builder.constants.append(constant)
            else:
                node = computed.node
                inputs = [None if source is None else self._constant(source) for source in node.inputs]
                attributes = {name: attribute.value for name, attribute in node.attributes.items()}
                outputs = self._builder.many(node.op_type, len(node.outputs), *inputs, **attributes)
                constant = outputs[computed.output]
        self._constants[key] = constant
        return constant
