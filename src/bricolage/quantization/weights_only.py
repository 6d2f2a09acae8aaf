"""Weights alone in 8 or 4 bits, in blocks along k: for models that are bound by reading them. Activations stay float."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.base.quantization_options import BlockMethod, QuantizationOptions
from bricolage.errors import BadOption, NothingToQuantise
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import Graph
from bricolage.quantization.awq import activation_aware, salient_factors
from bricolage.quantization.block_quantization import WeightBlocks, half_quadratic, quantize_gptq, round_to_nearest
from bricolage.quantization.calibration_samples import doubts, hold_back, inputs_of
from bricolage.quantization.insertion import added_constant
from bricolage.quantization.judge import Judge, SwitchedModel, switches
from bricolage.quantization.outcome import OperatorOutcome, QuantizationReport, QuantizedModel, constant_bytes
from bricolage.quantization.outlier_migration import shared_activations, with_factors
from bricolage.quantization.products import (
    Unquantised,
    WeightedProduct,
    known_names,
    products,
    quantised_products,
    require_float,
)
from bricolage.quantization.sensitivity import FloatChoice, KeptFloat, Sensitivity, nothing_left
from bricolage.rewrite.builder import Names
from bricolage.verify.held_back import Sample
from bricolage.verify.reference import Evaluator

OPSET_OF_BLOCKS = 21
"""From which on DequantizeLinear has blocks, and there are integers of 4 bits."""
_DOMAIN = "com.microsoft"
_BITS = {"int4": 4, "int8": 8}
_LARGEST_HESSIAN = 1 << 14
"""Rows of weights beyond which GPTQ's k³ steps take minutes."""


def quantized_weights_only(
    graph: Graph,
    samples: Sequence[Sample] | None,
    options: QuantizationOptions,
    held_back: Sequence[Sample] | None = None,
) -> QuantizedModel:
    """Quantises the constant weights of MatMul and Gemm in blocks.

    Args:
        graph: simplified, in opset 21 at least where the format is `blocks`. It is not changed.
        samples: inputs by name; None where there are none, so that no error is measured and nothing stays float for it.
        held_back: as for `quantized`.

    Raises:
        UnusableCalibration: samples are too few, constant or not finite.
        AlreadyQuantised, UnknownOperatorName: as for `quantized`.
        NothingToQuantise: there is no MatMul or Gemm with constant weights, or none within the error that is allowed.
        NoReference: the model cannot be evaluated.
        MissingFile, MetricFails, UnusableSamples: as for `quantized`.
    """
    require_float(graph.model)
    able, refused = _able(graph, options)
    options = replace(options, keep_float=known_names(options.keep_float, able, refused))
    taking_part = list(quantised_products(able, options.keep_float))
    if not taking_part:
        raise NothingToQuantise(
            reason="it has no MatMul or Gemm with constant weights that may take part, which blocks are for",
            advice="Leave --weights out: convolutions become bytes with calibration data",
        )
    seen, held = _divide_samples(graph, samples, held_back, options)
    method = options.block_method or ("gptq" if seen else "hqq")
    judge = Judge(graph.model, held, options) if held else None
    if method == "awq" and seen:
        graph = _with_salient_weights(graph, taking_part, seen, options)
        able, refused = _able(graph, options)
        taking_part = list(quantised_products(able, options.keep_float))
    blocks = _round_weights(graph, taking_part, seen, method, options)
    floats = {name: weight_blocks.floats for name, weight_blocks in blocks.items()}
    kept, taking, judged = KeptFloat({}, {}), taking_part, None
    if judge is not None:
        choice = _choice(graph, taking_part, floats, judge)
        kept, taking, judged = choice.kept, choice.taking, choice.judged
    model = _with_blocks(graph, taking, blocks, options)
    concerns = (
        doubts(seen, [inputs_of(graph.model, sample) for sample in held])
        if held
        else ["no calibration data: the error was not measured, and nothing stayed float for it"]
    )
    report = QuantizationReport(
        _outcomes(graph, able, refused, floats, kept, options),
        None if judged is None else judged.largest,
        typical_error=None if judged is None else judged.typical,
        agreement=None if judged is None else judged.agreement,
        calibrated_on=len(seen),
        held_back=len(held),
        bytes=(constant_bytes(graph.model), constant_bytes(model)),
        warnings=tuple(concerns),
        reached=None if judged is None else judged.reached,
    )
    return QuantizedModel(model, report)


def _divide_samples(
    graph: Graph, samples: Sequence[Sample] | None, held_back: Sequence[Sample] | None, options: QuantizationOptions
) -> tuple[list[Sample], list[Sample]]:
    """What rounding sees and what errors are measured on; nothing where there are no samples."""
    if samples is not None:
        return hold_back(graph.model, samples, held_back, options.held_back)
    if options.accuracy is not None:
        request = f"{options.accuracy} without data"
        raise BadOption(option="--accuracy", value=request, advice="Give --calibrate DATA.npz")
    return [], []


def _choice(
    graph: Graph, taking_part: Sequence[WeightedProduct], floats: Mapping[str, np.ndarray], judge: Judge
) -> FloatChoice:
    """Which products stay float; `floats`: what integers of weights mean."""
    switched = SwitchedModel(_with_floats(graph.model, taking_part, floats, switched=True), taking_part)
    work = {name: float(array.size) for name, array in floats.items()}
    search = Sensitivity(switched, taking_part, judge, work, lambda taking: _with_floats(graph.model, taking, floats))
    choice = search.kept_float()
    if choice is None:
        raise nothing_left(judge, [search])
    return choice


def _able(graph: Graph, options: QuantizationOptions) -> tuple[list[WeightedProduct], list[Unquantised]]:
    candidates, refused = products(graph)
    able: list[WeightedProduct] = []
    for product in candidates:
        reason = "blocks are for products of matrices" if product.op_type == "Conv" else ""
        k = _matrix(graph, product).shape[0] if not reason else 0
        if not reason and options.block_format == "blocks" and k % options.block_size:
            reason = f"its {k} rows are no whole number of blocks of {options.block_size}"
        if reason:
            refused.append(Unquantised(product.name, product.op_type, reason))
        else:
            able.append(product)
    return able, refused


def _matrix(graph: Graph, product: WeightedProduct) -> np.ndarray:
    """Weights [k, n]."""
    array = constant_elements(graph.constants[product.weight])
    assert array is not None
    return array.T if product.transposed else array


def _round_weights(
    graph: Graph,
    taking_part: Sequence[WeightedProduct],
    seen: Sequence[Sample],
    method: BlockMethod,
    options: QuantizationOptions,
) -> dict[str, WeightBlocks]:
    bits, size = _BITS[options.weights or "int4"], options.block_size
    hessians = _hessians(graph, taking_part, seen) if method == "gptq" else {}
    wide = [product for product in taking_part if method in ("awq", "gptq") and product.activation not in hessians]
    squares = _mean_squares(graph, wide, seen) if wide and seen else {}
    blocks: dict[str, WeightBlocks] = {}
    for product in taking_part:
        matrix = _matrix(graph, product)
        if product.activation in hessians:
            blocks[product.output] = quantize_gptq(matrix, bits, size, hessians[product.activation])
        elif product.activation in squares:
            blocks[product.output] = activation_aware(matrix, bits, size, squares[product.activation])
        else:
            blocks[product.output] = (round_to_nearest if method == "rtn" else half_quadratic)(matrix, bits, size)
    return blocks


def _with_salient_weights(
    graph: Graph, taking_part: Sequence[WeightedProduct], seen: Sequence[Sample], options: QuantizationOptions
) -> Graph:
    """An equal graph in which weights that meet large activations are larger, where what computes these takes it up."""
    bits, squares = _BITS[options.weights or "int4"], _mean_squares(graph, taking_part, seen)
    factors: dict[str, np.ndarray] = {}
    for group in shared_activations(graph, taking_part, options).values():
        group_squares = squares.get(group[0].activation)
        if group_squares is None or any(product.activation != group[0].activation for product in group):
            continue
        group_factors = salient_factors(
            [_matrix(graph, product) for product in group], bits, options.block_size, group_squares
        )
        factors |= {product.output: group_factors for product in group if group_factors is not None}
    return with_factors(graph, factors) if factors else graph


def _mean_squares(
    graph: Graph, taking_part: Sequence[WeightedProduct], seen: Sequence[Sample]
) -> dict[str, np.ndarray]:
    """Of the channels of activations, by name."""
    names = {product.activation for product in taking_part}
    return _sum_over_samples(graph, names, seen, lambda rows: (rows.astype(np.float64) ** 2).sum(axis=0))


def _hessians(graph: Graph, taking_part: Sequence[WeightedProduct], seen: Sequence[Sample]) -> dict[str, np.ndarray]:
    """Sums of xᵀx over the rows of activations, by name, but of those too wide for it."""
    names = {product.activation for product in taking_part if _matrix(graph, product).shape[0] <= _LARGEST_HESSIAN}
    return _sum_over_samples(graph, names, seen, lambda rows: rows.T @ rows)


def _sum_over_samples(
    graph: Graph, names: Set[str], seen: Sequence[Sample], of_rows: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Sums over samples of what `of_rows` makes of the rows of activations, by name, but of those that are not finite."""
    inputs = {value.name or "" for value in graph.model.graph.inputs}
    evaluate = Evaluator(graph.model, dtype=np.float32, keep=sorted(names - inputs))
    sums: dict[str, np.ndarray] = {}
    for sample in seen:
        values = {**sample, **evaluate(sample)}
        for name in names:
            array = np.asarray(values[name])
            sums[name] = sums.get(name, 0.0) + of_rows(array.reshape(-1, array.shape[-1]))
    return {name: total for name, total in sums.items() if np.isfinite(total).all()}


def _with_floats(
    model: ir.Model, taking: Sequence[WeightedProduct], floats: Mapping[str, np.ndarray], *, switched: bool = False
) -> ir.Model:
    """A copy in which weights are rounded to what their integers mean; with `switched`, an input says for each whether."""
    clone = model.clone()
    names, values = Names(clone), {value.name or "": value for node in clone.graph for value in node.outputs}
    truths = switches(clone, taking) if switched else {}
    for product in taking:
        node = values[product.output].producer()
        assert node is not None
        array = floats[product.output].T if product.transposed else floats[product.output]
        value = added_constant(clone, names, f"{product.output}.weight", array)
        if switched:
            choice = ir.node("Where", [truths[product.output], value, node.inputs[1]], name=names.fresh("Where"))
            choice.outputs[0].name = names.fresh(f"{product.output}.weight.chosen")
            choice.outputs[0].type, choice.outputs[0].shape = value.type, value.shape
            clone.graph.insert_before(node, [choice])
            value = choice.outputs[0]
        node.replace_input_with(1, value)
    return clone


def _with_blocks(
    graph: Graph, taking: Sequence[WeightedProduct], blocks: Mapping[str, WeightBlocks], options: QuantizationOptions
) -> ir.Model:
    """A copy with the operators of the format that was asked for."""
    clone = graph.model.clone()
    names, values = Names(clone), {value.name or "": value for node in clone.graph for value in node.outputs}
    place = _as_blocks if options.block_format == "blocks" else _as_operator
    for product in taking:
        node = values[product.output].producer()
        assert node is not None
        place(clone, node, product, blocks[product.output], _BITS[options.weights or "int4"], options, names)
    for value in list(clone.graph.initializers.values()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del clone.graph.initializers[value.name or ""]
    return clone


def _as_blocks(
    model: ir.Model,
    node: ir.Node,
    product: WeightedProduct,
    found: WeightBlocks,
    bits: int,
    options: QuantizationOptions,
    names: Names,
) -> None:
    """DequantizeLinear with blocks in front of the product."""
    kind = ml_dtypes.uint4 if bits == 4 else np.uint8
    whole = found.integers.reshape(-1, found.integers.shape[-1])
    arrays = [array.T if product.transposed else array for array in (whole, found.scales, found.zeros)]
    integers, scales, zeros = arrays[0].astype(kind), arrays[1], arrays[2].astype(kind)
    stem = f"{product.output}.weight"
    inputs = [
        added_constant(model, names, stem, integers),
        added_constant(model, names, f"{stem}.scale", np.ascontiguousarray(scales)),
        added_constant(model, names, f"{stem}.zero", zeros),
    ]
    attributes = {"axis": 1 if product.transposed else 0, "block_size": options.block_size}
    dq = ir.node("DequantizeLinear", inputs, attributes, name=names.fresh(f"{stem}.DequantizeLinear"))
    (result,) = dq.outputs
    result.name, result.shape = names.fresh(f"{stem}.float"), ir.Shape(integers.shape)
    result.type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.insert_before(node, [dq])
    node.replace_input_with(1, result)


def _as_operator(
    model: ir.Model,
    node: ir.Node,
    product: WeightedProduct,
    found: WeightBlocks,
    bits: int,
    options: QuantizationOptions,
    names: Names,
) -> None:
    """ONNX Runtime's MatMulNBits in the place of the product, and an Add behind it where there is a bias."""
    _, size, n = found.integers.shape
    stem = f"{product.output}.weight"
    inputs = [
        node.inputs[0],
        added_constant(model, names, stem, pack_integers(np.moveaxis(found.integers, -1, 0), bits)),
        added_constant(model, names, f"{stem}.scale", np.ascontiguousarray(found.scales.T)),
        added_constant(model, names, f"{stem}.zero", pack_integers(np.ascontiguousarray(found.zeros.T), bits)),
    ]
    attributes = {"K": found.k, "N": n, "bits": bits, "block_size": size, "accuracy_level": options.accuracy_level}
    matmul = ir.node(
        "MatMulNBits", inputs, attributes, domain=_DOMAIN, name=names.fresh(f"{node.name or product.output}.blocks")
    )
    (old,) = node.outputs
    (result,) = matmul.outputs
    result.name, result.shape, result.type = names.fresh(f"{product.output}.product"), old.shape, old.type
    nodes = [matmul]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        added = ir.node("Add", [result, bias], name=names.fresh(f"{product.output}.Add"))
        added.outputs[0].shape, added.outputs[0].type = old.shape, old.type
        nodes.append(added)
        result = added.outputs[0]
    graph = model.graph
    graph.insert_before(node, nodes)
    name = old.name
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name = names.fresh(f"{name}.replaced")
    result.name = name
    graph.remove(node, safe=True)
    graph.opset_imports.setdefault(_DOMAIN, 1)


def pack_integers(integers: np.ndarray, bits: int) -> np.ndarray:
    """The last axis in bytes, two integers of 4 bits in each, the first one low; an odd end is filled up with zero."""
    if bits == 8:
        return np.ascontiguousarray(integers)
    even = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, integers.shape[-1] % 2)])
    packed: np.ndarray = (even[..., 0::2] | (even[..., 1::2] << 4)).astype(np.uint8)
    return packed


def _outcomes(
    graph: Graph,
    able: Sequence[WeightedProduct],
    refused: Sequence[Unquantised],
    floats: Mapping[str, np.ndarray],
    kept: KeptFloat,
    options: QuantizationOptions,
) -> tuple[OperatorOutcome, ...]:
    weight_errors: dict[str, float] = {}
    for product in able:
        if product.output in floats:
            matrix = _matrix(graph, product)
            norm = float(np.linalg.norm(matrix))
            weight_errors[product.output] = (
                float(np.linalg.norm(floats[product.output] - matrix)) / norm if norm else 0.0
            )
    return kept.outcomes(graph, able, refused, weight_errors, options.keep_float, _BITS[options.weights or "int4"])
