"""Optimum's merged decoders: one graph for the first tokens and one for those behind a cache, in the branches of an If."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value
from bricolage.graph.control_flow import inline_decided
from bricolage.language.onnx_decoders.cache_interface import CACHE_BRANCH, CacheInterface


def decide_branch(model: ir.Model, interface: CacheInterface) -> None:
    """Leaves the branch that reads a cache, in place. That the other one computes the same is seen where both are compared with
    ONNX Runtime."""
    if CACHE_BRANCH not in interface.controls:
        return
    (given,) = (value for value in model.graph.inputs if value.name == CACHE_BRANCH)
    constant = constant_value(f"{CACHE_BRANCH}.taken", np.array([True]))
    given.replace_all_uses_with(constant)
    model.graph.inputs.remove(given)
    model.graph.register_initializer(constant)
    inline_decided(model)
