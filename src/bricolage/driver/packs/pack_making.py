"""Making a pack: one model, several kinds of devices, one file (after Mistify: Guo, Hu, Hu, NSDI'21).

The model is opened, prepared and written once. Targets are decided from loose to tight: precision, threads, instructions, memory;
those of other machines meanwhile, on Ray nodes.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

from bricolage.base import scratch
from bricolage.driver.context import open_pool
from bricolage.driver.packs.pack_nodes import PackNodes
from bricolage.driver.packs.pack_request import PackRequest
from bricolage.driver.packs.target_decision import SharedByTargets, decide_targets
from bricolage.driver.sources import open_source, working_folder
from bricolage.plan import artifact
from bricolage.plan.pack import Pack
from bricolage.plan.plan import Plan


@dataclass(frozen=True)
class Packed:
    """A pack that was written, with its plans in the order of its entries."""

    pack: Pack
    plans: tuple[Plan, ...]


def make_pack(request: PackRequest) -> Packed:
    """Decides on each target, and writes the pack.

    Raises:
        As `pack`.
    """
    request.check_cluster()
    request.check_data()
    options, targets = request.options, request.targets
    target_options = {target.name: request.options_of(target) for target in request.here}
    began, directory = time.monotonic(), working_folder()
    try:
        with scratch.using(directory, keep=True), _join_nodes(request) as nodes, open_pool(options) as pool:
            opened = open_source(request.model, options, directory)
            seconds = {"model": time.monotonic() - began}
            if nodes is not None:
                nodes.begin(opened, options, request.replan, request.provisional)
            decided = decide_targets(SharedByTargets(request, opened, pool), target_options)
            if nodes is not None:
                request.progress.start("targets on Ray nodes")
                decided |= nodes.take(opened)
                request.progress.finish()
            plans = tuple(decided[target.name].plan for target in targets)
            files = ["plan.json", *(f"plan-{target.name}.json" for target in targets[1:])]
            entries = (
                replace(decided[target.name].entry, plan=file) for target, file in zip(targets, files, strict=True)
            )
            pack_index = Pack(tuple(entries), seconds)
            artifact.save(plans[0], directory, request.output, pack_index, plans)
    finally:
        scratch.remove(directory)
    return Packed(pack_index, plans)


def _join_nodes(request: PackRequest) -> AbstractContextManager[PackNodes | None]:
    return nullcontext(None) if request.ray is None else closing(PackNodes(request.ray, request.afar, make_pack))
