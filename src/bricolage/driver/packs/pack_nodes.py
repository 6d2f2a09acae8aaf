"""Targets of a pack whose device is another machine: decided, raced and tried on a Ray node that offers the device as a resource.

All targets of one resource are decided on one node by the same `make_pack`, from loose to tight. The node gets the model as it was
written here, and answers with a pack, whose plans and files are taken over into the one that is made here.
"""

from __future__ import annotations

import logging
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.codec import JsonObject, decode, encode
from bricolage.base.options import Options
from bricolage.base.progress import Silent
from bricolage.base.ray_session import RayObject, RaySession, describe_error
from bricolage.base.undo import undo_on_failure
from bricolage.driver.packs.pack_request import PackRequest
from bricolage.driver.packs.target_decision import DecidedTarget
from bricolage.driver.sources import GivenModel, Source, working_folder
from bricolage.errors import BadArtifact, BricolageError, PackNodeFailed
from bricolage.graph import model_interface
from bricolage.graph.extract import data_files
from bricolage.graph.graph import Graph
from bricolage.plan import artifact
from bricolage.plan.pack import PackTarget

_LOG = logging.getLogger(__name__)
_JOINING_S = 120.0
"""Until a node has said what it is: importing us takes seconds, and others may have its processors."""
_LOOK_S = 1.0
_PACK = "node.pack"


Decide = Callable[[PackRequest], object]
"""`pack_making.make_pack`, which this module does not know."""


@dataclass(frozen=True)
class NodeTask:
    """What a node is asked for."""

    targets: tuple[PackTarget, ...]
    options: Options
    replan: bool
    provisional: bool = False


class PackStation:
    """The actor on a node. It has all of the node's processors, and one unit of the resource."""

    def __init__(self, registered: Mapping[str, str], decide: Decide) -> None:
        self._decide = decide
        for name, reference in registered.items():
            registry.register(name, reference)

    def describe(self) -> tuple[str, str]:
        """The host, and the version of bricolage there."""
        return socket.gethostname(), __version__

    def pack(
        self, task: JsonObject, files: Mapping[str, bytes], inputs: Mapping[str, np.ndarray] | None
    ) -> tuple[bytes, str]:
        """The contents of a pack, or why there is none.

        Args:
            task: a `NodeTask`.
            files: of the model, by name.
            inputs: arrays by name, or None.
        """
        asked = decode(NodeTask, task, "task")
        try:
            directory = working_folder()
            try:
                for name, content in files.items():
                    (directory / name).write_bytes(content)
                model, pack_path = model_interface.read_written_model(directory / artifact.MODEL), directory / _PACK
                self._decide(
                    PackRequest(
                        GivenModel(model, inputs=inputs),
                        asked.targets,
                        pack_path,
                        asked.options,
                        Silent(),
                        replan=asked.replan,
                        provisional=asked.provisional,
                    )
                )
                return pack_path.read_bytes(), ""
            finally:
                scratch.remove(directory)
        except BricolageError as error:
            return b"", error.sentence


@dataclass
class _Group:
    """The targets of one resource, and the node that decides on them."""

    resource: str
    targets: list[PackTarget]
    left: list[tuple[str, int, float]]
    """Nodes that were not tried, each with its processors and units of the resource."""
    actor: RayObject = None
    coming: RayObject = None
    host: str = ""
    since: float = 0.0


class PackNodes:
    """The nodes of a Ray cluster that decide on targets while others are decided here. To be closed."""

    def __init__(self, address: str, targets: Sequence[PackTarget], decide: Decide) -> None:
        """Joins the cluster, and asks for an actor for each resource, which makes a pack by `decide`.

        Raises:
            MissingLibrary: ray is not installed.
            UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
            PackNodeFailed: no node offers a resource that a target names.
        """
        self._session = RaySession(address)
        self._ray = self._session.ray
        self._decide = decide
        self._groups: list[_Group] = []
        self._task: tuple[RayObject, ...] = ()
        self._asked = NodeTask((), Options(), False)
        with undo_on_failure(self.close):
            for resource in dict.fromkeys(target.ray for target in targets):
                members = [target for target in targets if target.ray == resource]
                self._groups.append(_Group(resource, members, self._offering(resource)))
            for group in self._groups:
                self._next(group, "no node of the cluster offers it")

    def close(self) -> None:
        """Ends the actors, whatever they do."""
        for group in self._groups:
            self._end(group)
        self._session.close()

    def begin(self, opened: Source, options: Options, replan: bool, provisional: bool = False) -> None:
        """Sends the model. Nodes decide from now on.

        Args:
            opened: the model, written in its folder.
            options: what all targets share.
            replan, provisional: as for `optimize`.
        """
        directory = opened.store.directory
        names = [artifact.MODEL, *sorted(data_files(directory / artifact.MODEL))]
        files = {name: (directory / name).read_bytes() for name in names}
        inputs = None if opened.inputs is None else {name: np.asarray(array) for name, array in opened.inputs.items()}
        self._asked = NodeTask((), options, replan, provisional)
        self._task = (self._ray.put(files), self._ray.put(inputs))

    def take(self, opened: Source) -> dict[str, DecidedTarget]:
        """What nodes decided, by target. A node that is lost gives its targets to another one that offers the resource.

        Raises:
            PackNodeFailed: a decision came to nothing on a node, or no node is left.
        """
        decisions: dict[str, DecidedTarget] = {}
        waiting = list(self._groups)
        while waiting:
            self._ray.wait([group.coming for group in waiting], timeout=_LOOK_S)
            for group in list(waiting):
                answer = self._collect_pack(group)
                if answer is not None:
                    waiting.remove(group)
                    self._end(group)
                    decisions |= taken_over(answer, group.targets, opened)
        return decisions

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _offering(self, resource: str) -> list[tuple[str, int, float]]:
        """Living nodes with the resource."""
        return [
            (str(facts["NodeID"]), int(facts["Resources"].get("CPU", 0)), float(facts["Resources"][resource]))
            for facts in self._ray.nodes()
            if facts["Alive"] and facts["Resources"].get(resource, 0.0) > 0.0
        ]

    def _next(self, group: _Group, reason: str) -> None:
        """Asks another node.

        Raises:
            PackNodeFailed: there is none; `reason` says what came of the last one.
        """
        self._end(group)
        if not group.left:
            raise PackNodeFailed(target=group.targets[0].name, resource=group.resource, reason=reason)
        node, processors, units = group.left.pop(0)
        group.actor = (
            self._ray.remote(PackStation)
            .options(
                num_cpus=processors,
                resources={group.resource: min(units, 1.0)},
                scheduling_strategy=self._session.on_node(node),
            )
            .remote(registry.registered_references(), self._decide)
        )
        group.host, group.since, group.coming = "", time.monotonic(), group.actor.describe.remote()

    def _end(self, group: _Group) -> None:
        if group.actor is not None:
            try:
                self._ray.kill(group.actor)
            except self._session.errors as error:
                _LOG.debug("a node had gone: %s", describe_error(error))
        group.actor = None

    def _collect_pack(self, group: _Group) -> bytes | None:
        """The pack of a group, once it is there."""
        if not self._ray.wait([group.coming], timeout=0)[0]:
            if not group.host and time.monotonic() > group.since + _JOINING_S:
                self._next(group, f"it gave no processors within {_JOINING_S:.0f} s: others have them, or it is slow")
            return None
        try:
            answer = self._ray.get(group.coming)
        except self._session.errors as error:
            _LOG.warning("a node with '%s' is lost: %s", group.resource, describe_error(error))
            self._next(group, f"the node was lost: {describe_error(error)}")
            return None
        if not group.host:
            host, version = answer
            if version != __version__:
                self._next(group, f"{host} has bricolage {version}, here is {__version__}")
                return None
            group.host = host
            here = tuple(replace(member, ray="") for member in group.targets)
            group.coming = group.actor.pack.remote(encode(replace(self._asked, targets=here)), *self._task)
            return None
        content, reason = answer
        if reason:
            target = ", ".join(member.name for member in group.targets)
            raise PackNodeFailed(target=target, resource=group.resource, reason=f"{group.host}: {reason}")
        return bytes(content)


def taken_over(content: bytes, targets: Sequence[PackTarget], opened: Source) -> dict[str, DecidedTarget]:
    """The plans of a pack that a node made of the same model, by target. Their graphs lie in the folder of `opened` afterwards,
    over the weights that are there; weights that a node made anew come with them.

    Raises:
        PackNodeFailed: the pack is damaged, or lacks a target.
    """

    def wrong(reason: object) -> PackNodeFailed:
        return PackNodeFailed(target=targets[0].name, resource=targets[0].ray, reason=reason)

    with tempfile.TemporaryDirectory(dir=opened.store.directory) as place:
        path = Path(place) / _PACK
        path.write_bytes(content)
        try:
            plans, source = artifact.plans(path)
            index = artifact.read_pack(source)
        except BadArtifact as error:
            raise wrong(error.sentence) from error
        entries = {} if index is None else {entry.target.name: entry for entry in index.entries}
        if lacking := [target.name for target in targets if target.name not in entries]:
            raise wrong(f"its answer lacks {', '.join(lacking)}")
        names = dict.fromkeys(bucket.program.graph for target in targets for bucket in plans[target.name].buckets)
        models = {name: ir.load(source / name) for name in names}
        opened.store.share(list(models.values()), f"weights-{targets[0].name}.data")
        written = {name: opened.store.graph(Graph(model)) for name, model in models.items()}
    decisions = dict[str, DecidedTarget]()
    for target in targets:
        plan = plans[target.name]
        programs = [replace(bucket.program, graph=written[bucket.program.graph]) for bucket in plan.buckets]
        buckets = tuple(
            replace(bucket, program=program) for bucket, program in zip(plan.buckets, programs, strict=True)
        )
        plan = replace(plan, model=opened.name, digest=opened.digest, buckets=buckets)
        decisions[target.name] = DecidedTarget(plan, replace(entries[target.name], target=target))
    return decisions
