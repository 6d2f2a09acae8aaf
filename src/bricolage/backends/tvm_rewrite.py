"""Rewrites around faults of TVM 0.27, and those that it leaves to its user: before the import, and of Relax modules."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import onnx

from bricolage.backends.tvm_schedule import block_size

if TYPE_CHECKING:
    from tvm import IRModule, relax, te

_LOG = logging.getLogger(__name__)
_PACKED_FROM = 1 << 14  # elements of a matrix that no longer stays in the first-level cache
_PANEL = 16  # narrowest panel, in elements
_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "HWIO"]}


def explicit_statistics(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the mean and the inverse deviation of layer normalisations, which TVM's importer gets wrong, computed
    by operators of their own. Changes the model in place."""
    graph = proto.graph
    types = {info.name: info.type.tensor_type for info in (*graph.input, *graph.value_info)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "LayerNormalization" or node.domain or not any(node.output[1:]):
            continue
        chosen = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        axis, rank = int(chosen.get("axis", -1)), len(types[node.input[0]].shape.dim)
        parts = ("axes", "epsilon", "mean", "centred", "square", "variance", "total", "root")
        axes, epsilon, mean, centred, square, variance, total, root = (f"{node.output[0]}.{part}" for part in parts)
        kind = types[node.input[0]].elem_type
        graph.initializer.append(onnx.numpy_helper.from_array(np.arange(axis % rank, rank), axes))
        graph.initializer.append(onnx.helper.make_tensor(epsilon, kind, [], [float(chosen.get("epsilon", 1e-5))]))
        outputs = [*node.output[1:], ""][:2]
        make = onnx.helper.make_node
        nodes += [
            make("ReduceMean", [node.input[0], axes], [mean]),
            make("Sub", [node.input[0], mean], [centred]),
            make("Mul", [centred, centred], [square]),
            make("ReduceMean", [square, axes], [variance]),
            make("Add", [variance, epsilon], [total]),
            make("Sqrt", [total], [root]),
            *([make("Identity", [mean], [outputs[0]])] if outputs[0] else []),
            *([make("Reciprocal", [root], [outputs[1]])] if outputs[1] else []),
        ]
        del node.output[1:]
    del graph.node[:]
    graph.node.extend(nodes)
    return proto


def put_channels_last(module: IRModule) -> IRModule:
    """Convolutions with channels last, which is the order in which their results fill vectors; weights are turned when
    constants are folded. The pass fails on some models; these keep ONNX's order."""
    import tvm
    from tvm import relax

    if not _calls(module, "relax.nn.conv2d"):
        return module
    try:
        return tvm.ir.transform.Sequential(
            [relax.transform.ConvertLayout(_CHANNELS_LAST), relax.transform.Normalize()]
        )(module)
    except tvm.error.InternalError as error:
        _LOG.debug("the layout stays as it is: %s", error)
        return module


def _calls(module: IRModule, operator: str) -> bool:
    """Whether the main function calls an operator."""
    import tvm
    from tvm import relax

    call_names: list[str] = []

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            call_names.append(node.op.name)

    relax.analysis.post_order_visit(module["main"], visit)
    return operator in call_names


def rewrite_module(module: IRModule) -> IRModule:
    """Two operators in better forms (float32 only): erf as a rational function at 3.3e-7 of relative error, because the C
    library's runs one element at a time; and constant right-hand matrices of products cut into panels (`_product`)."""
    from tvm import relax, topi

    @relax.expr_functor.mutator
    class Mutator(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            name = getattr(call.op, "name", "")
            if name not in ("relax.erf", "relax.matmul") or any(str(x.ty.dtype) != "float32" for x in call.args):
                return super().visit_call_(call)
            first = self.visit_expr(call.args[0])
            if name == "relax.erf":
                return self.builder_.call_te(topi.fast_erf, first)
            product = _product(self.builder_, first, call)
            return super().visit_call_(call) if product is None else product

    if not (_calls(module, "relax.erf") or _calls(module, "relax.matmul")):
        return module
    mutator = Mutator(module)
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    return mutator.builder_.get()


def _product(builder: relax.BlockBuilder, left: relax.Expr, call: relax.Call) -> relax.Expr | None:
    """A matrix product whose constant right-hand side lies in panels as wide as the blocks of results that `schedule`
    keeps in registers, so that each panel is read front to back (Goto & van de Geijn 2008, section 4.2.3). None where the
    matrix is small, no constant or has no good width."""
    import tvm
    from tvm import relax, te

    matrix = call.args[1]
    shape = [int(size) for size in left.ty.shape]
    if not isinstance(matrix, tvm.ir.GenericConst) or len(matrix.value.shape) != 2 or len(shape) < 2:
        return None
    depth, columns = map(int, matrix.value.shape)
    rows = next((size for size in reversed(shape[:-1]) if size > 1), 1)
    width = block_size(rows, columns, lanes=16)[1]
    if depth * columns < _PACKED_FROM or width < _PANEL:
        return None
    panels = matrix.value.numpy().reshape(depth, columns // width, width).transpose(1, 0, 2)

    def compute(x: te.Tensor, packed: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, depth), "k")
        return te.compute(
            (*shape[:-1], columns),
            lambda *at: te.sum(x[(*at[:-1], k)] * packed[at[-1] // width, k, at[-1] % width], axis=k),
            name="matmul",
        )

    return builder.call_te(compute, left, relax.const(np.ascontiguousarray(panels)), primfunc_name_hint="matmul")


def outputs_given(module: IRModule) -> IRModule:
    """Makes the results of `main` arguments that it fills, where each result is a tensor that `main` allocates.

    Runs between `CallTIRRewrite`, which makes allocations explicit, and memory planning: the variable of an allocation
    becomes a parameter.
    """
    from tvm import relax

    main = module["main"]
    bindings = {binding.var: binding for block in main.body.blocks for binding in block.bindings}

    def source(expression: relax.Expr) -> relax.Expr:
        while isinstance(expression, relax.Var) and isinstance(
            getattr(bindings.get(expression), "value", None), relax.Var
        ):
            expression = bindings[expression].value
        return expression

    result = source(main.body.body)
    if result in bindings and isinstance(bindings[result].value, relax.Tuple):
        result = bindings[result].value
    fields = [source(field) for field in (result.fields if isinstance(result, relax.Tuple) else [result])]
    for field in fields:
        call = getattr(bindings.get(field), "value", None)
        if getattr(getattr(call, "op", None), "name", "") != "relax.builtin.alloc_tensor":
            return module
    if len(set(fields)) != len(fields):
        return module
    blocks = [
        relax.BindingBlock([binding for binding in block.bindings if binding.var not in fields])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    module["main"] = relax.Function([*main.params, *fields], body, main.ret_ty, main.is_pure, main.attrs)
    return module
