"""What the kernels of a region move to and from the memory, and what the best groups of its layers would: `explain --traffic`."""

from __future__ import annotations

from bricolage.backends.interface import RegionModel, Resources, require_static
from bricolage.backends.native.region_builder import plan_region_structure
from bricolage.native.fuse.inspect import kernel_traffic
from bricolage.native.fuse.kernel_layers import WORD_BYTES, buffer_levels, kernel_layers
from bricolage.native.ir.tensors import Node
from bricolage.native.library_files import TITLE
from bricolage.search.layer_groups.group_search import SEARCHES, LayerPlan, partition_cost
from bricolage.search.layer_groups.group_traffic import TrafficModel
from bricolage.work.fused_kernel import GroupedTraffic, RegionTraffic
from bricolage.work.implementation import KernelConfig

_LIMIT_S = 10.0
"""For each search. Where it ends, the best division so far is shown, and is not proven."""
_TITLES = {
    "unfused": "every layer alone",
    "chains": "chains (DNNVM)",
    "order": "one order (Efficient-S)",
    "hafs": "dynamic programme (Optimus)",
    "least": "branch and bound",
}


def report_traffic(region: RegionModel, config: KernelConfig, resources: Resources) -> RegionTraffic:
    """See `Backend.traffic_report`."""
    require_static(region, TITLE)
    origins = dict[Node, str]()
    _, plan, target, _ = plan_region_structure(region, config, resources, origins)
    network, kernels = kernel_layers(plan)
    model = TrafficModel(network, buffer_levels(target.l2_bytes, target.lanes))
    groupings: list[GroupedTraffic] = []
    for name, search in SEARCHES.items():
        layer_plan = search(model, _LIMIT_S)
        if layer_plan is not None:
            groupings.append(_grouped(_TITLES[name], layer_plan))
    groupings.insert(1, _grouped("these kernels", partition_cost(model, kernels)))
    return RegionTraffic(kernel_traffic(plan, origins), target.l2_bytes, len(network.layers), tuple(groupings))


def _grouped(title: str, plan: LayerPlan) -> GroupedTraffic:
    return GroupedTraffic(title, len(plan.groups), plan.memory_words * WORD_BYTES, plan.cost / 1e6, plan.proven)
