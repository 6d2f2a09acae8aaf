"""The form of a model in which it is quantised."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.base.quantization_options import QuantizationOptions
from bricolage.frontends.clean import raise_opset
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from bricolage.quantization.names import give_names, names_by_result
from bricolage.quantization.weights_only import OPSET_OF_BLOCKS
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.apply import rewrite


def canonical(original: ir.Model, options: QuantizationOptions) -> Graph:
    """A copy, simplified: batch normalisations are in the weights, and normalisations are one operator."""
    model, names = original.clone(), names_by_result(original)
    if options.weights is not None and options.block_format == "blocks":
        raise_opset(model, max(OPSET_OF_BLOCKS, model.graph.opset_imports.get("", 0)))
    simplify(model)
    rewrite(model, choose_rules(generated=False))
    graph = simplify(model)
    give_names(model, names)
    return graph
