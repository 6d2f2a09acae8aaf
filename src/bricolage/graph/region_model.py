"""What a backend gets to compile: a region on disk, and the resources that its kernel may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bricolage.base.options import available_cores
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.device.tensor_form import NamedShape, SizedTensor, TensorForm
from bricolage.errors import FileUnlikeModel, Refused
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import KernelConfig, Scalar, Team

if TYPE_CHECKING:
    import onnx_ir as ir

    from bricolage.graph.graph import TensorInfo

REGION = "region-"
"""How the names of files begin that hold the models of regions."""


class RegionEnds(Protocol):
    """What a kernel needs to know of its region to be run."""

    @property
    def inputs(self) -> tuple[TensorForm, ...]:
        """The tensors that enter the region, weights left out."""
        ...

    @property
    def outputs(self) -> tuple[TensorForm, ...]:
        """Those that leave it."""
        ...


@dataclass(frozen=True)
class KeptEnds:
    """The ends of a region whose compiled code was kept."""

    inputs: tuple[SizedTensor, ...]
    outputs: tuple[SizedTensor, ...]


@dataclass(frozen=True)
class RegionModel:
    """A region on disk: a small ONNX file next to a shared weights file (external data)."""

    path: Path

    @cached_property
    def model(self) -> ir.Model:
        """The region as `onnx_ir`; large constants are memory-mapped."""
        import onnx_ir as ir  # here, as in all of this module: what opens compiled code reads no model

        return ir.load(self.path)

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Names, types and sizes of the tensors that enter the region, weights left out."""
        from bricolage.graph.graph import describe

        graph = self.model.graph
        return tuple(describe(value) for value in graph.inputs if value.name not in graph.initializers)

    @cached_property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The same of the tensors that leave it."""
        from bricolage.graph.graph import describe

        return tuple(describe(value) for value in self.model.graph.outputs)

    @property
    def results(self) -> tuple[TensorInfo, ...]:
        """The outputs under the names that the program has for them."""
        return self.outputs


@dataclass(frozen=True)
class FileModel(RegionModel):
    """A user's file in the place of a region."""

    given: tuple[NamedShape, ...] = ()
    """Its inputs that a call gives, in order, with the shapes of this program. Others have defaults."""
    called: tuple[NamedShape, ...] = ()
    """What the program calls its outputs, in their order, with the shapes of this program. What the file states of them is not
    read: it may be wrong, and its sizes may be open."""

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Names, types and sizes of the inputs that are given.

        Raises:
            FileUnlikeModel: the file has other ones.
        """
        from bricolage.graph.graph import describe

        model_inputs = {value.name: value for value in self.model.graph.inputs}
        if missing := [name for name, _ in self.given if name not in model_inputs]:
            raise FileUnlikeModel(reason=f"it has no input '{missing[0]}'")
        return tuple(replace(describe(model_inputs[name]), shape=shape) for name, shape in self.given)

    @property
    def results(self) -> tuple[TensorInfo, ...]:
        """The outputs under the names and of the shapes that the program has for them. One that the file passes through has a shape
        that only a run tells, since tools do not write it into a buffer that they are given (ONNX Runtime 1.31.1).

        Raises:
            FileUnlikeModel: there are more or fewer.
        """
        if len(self.outputs) != len(self.called):
            reason = f"it has {len(self.outputs)} outputs, and {len(self.called)} are expected"
            raise FileUnlikeModel(reason=reason)
        passed = {value.name for value in self.model.graph.inputs} | {*self.model.graph.initializers}
        ends = zip(self.outputs, self.called, strict=True)
        return tuple(
            replace(info, name=name, shape=None if info.name in passed else shape) for info, (name, shape) in ends
        )


def require_static(region: RegionModel, title: str) -> None:
    """For backends that compile for one set of shapes; `title` is the backend's.

    Raises:
        Refused: an input or output has no buffer that could be allocated now.
    """
    import onnx_ir as ir

    for info in (*region.inputs, *region.outputs):
        if info.dtype is None or info.dtype == ir.DataType.STRING:
            raise Refused(backend=title, reason=f"'{info.name}' is not a tensor of numbers")
        if not info.static:
            raise Refused(backend=title, reason="shapes must be known when it compiles")


def values_of(config: KernelConfig, parameters: Mapping[str, tuple[Scalar, ...]], title: str) -> Mapping[str, Scalar]:
    """The values that a configuration gives to parameters of a region as a whole, of those that each may have.

    Raises:
        Refused: it has others.
    """
    if config not in ConfigSpace.of(config, parameters):
        raise Refused(backend=title, reason=f"there is no configuration '{config.text}'")
    return dict(config.parameters)


@dataclass(frozen=True)
class Resources:
    """What a kernel may use."""

    threads: int = 1
    device: Device = field(default_factory=host)
    """Where it runs."""
    alone: bool = False
    """True when no other runtime lives in the process: only then may threads spin while waiting."""
    cache: Path | None = None
    """Folder in which the backend may keep compiled code between runs (already specific to versions and hardware)."""
    shares_weights: bool = False
    """Whether weights lie once in `cache` for all code that reads the same bytes, and are mapped: processes share the memory. Only
    our own engine does so."""

    def of_team(self, team: Team) -> Resources:
        """What of it the threads of a team use."""
        if not team:
            return self
        return replace(self, threads=1) if team == "one-thread" else replace(self, alone=False)

    @property
    def own_threads(self) -> int | None:
        """Threads to ask a tool for that sets itself up: None where it is to take as many as it takes by itself, since all of this
        process are meant."""
        return None if self.threads == available_cores() and not self.device.is_group else self.threads
