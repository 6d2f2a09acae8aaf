"""Whether a backend multiplies bytes exactly: single products of a quantised graph, on the very bytes that the reference has there.

In a deep quantised graph ties of rounding move the answer by themselves: one element that falls on the other side of a tie
changes all that follows. So a product that saturates may hide in what ties do to the whole. A single product from bytes to its
sums has no ties, or those of its result alone, and shows it.
"""

from __future__ import annotations

from dataclasses import replace

from bricolage.costs.measurements import Measurements
from bricolage.driver.candidates import CandidateGroup
from bricolage.driver.region_costs import measure_groups
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Graph, Operator, Region
from bricolage.graph.work import flops, workload
from bricolage.measure.specs import Stop

_PRODUCTS = ({"MatMul", "Gemm"}, {"Conv"})
"""Of each kind the one with the most operations is checked: kernels are chosen by kind."""
_RECTIFIERS = frozenset({"Relu", "Clip"})


def check_products(variant: TimedVariant, stop: Stop) -> None:
    """Refuses implementations of a whole quantised graph that run one of its largest products from bytes otherwise than exactly."""
    regions = byte_products(variant.graph)
    able = tuple(implementation for implementation, cost in variant.whole.items() if cost.ms is not None)
    if not regions or not able or stop():
        return
    variant.session.progress.start("products of bytes", len(regions) * len(able))
    for region in regions:
        key = variant.region_key(region)
        group = CandidateGroup(key, (region.bits,), able, workload(region), "prefix")
        costs = Measurements(measure_groups(variant, [group], stop)).of(key)
        for implementation, cost in costs.items():
            if cost.outcome == "wrong":
                names = "+".join(sorted({operator.op_type for operator in region.operators} & set().union(*_PRODUCTS)))
                reason = f"it does not multiply bytes exactly: {names} alone: {cost.reason}"
                variant.whole[implementation] = replace(
                    variant.whole[implementation], outcome="wrong", latency=None, reason=reason
                )
    variant.session.progress.finish()


def byte_products(graph: Graph) -> list[Region]:
    """The largest product of each kind, with the dequantisations that it reads and the quantisation behind it."""
    regions: list[Region] = []
    for kinds in _PRODUCTS:
        fitting = [
            operator
            for operator in graph.operators
            if operator.op_type in kinds and not operator.domain and _from_bytes(graph, operator)
        ]
        if fitting:
            regions.append(_around(graph, max(fitting, key=flops)))
    return regions


def _from_bytes(graph: Graph, product: Operator) -> bool:
    """Whether both factors are dequantised."""
    before = [graph.operators[number] for number in graph.predecessors[product.number]]
    read = {value for operator in before if operator.op_type == "DequantizeLinear" for value in operator.outputs}
    return all(value in read for value in product.node.inputs[:2])


def _around(graph: Graph, product: Operator) -> Region:
    bits = 1 << product.number
    for number in graph.predecessors[product.number]:
        if graph.operators[number].op_type == "DequantizeLinear":
            bits |= 1 << number
    last = product
    while True:
        readers = graph.readers(last.outputs[0])
        behind = graph.operators[readers[0]] if len(readers) == 1 else None
        if behind is None or behind.op_type not in {*_RECTIFIERS, "QuantizeLinear"}:
            return Region(graph, bits)
        bits |= 1 << behind.number
        if behind.op_type == "QuantizeLinear":
            return Region(graph, bits)
        last = behind
