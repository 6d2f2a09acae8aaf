"""Files that describe a training step: which module, on which batch, with which loss and optimiser, on which device.

The file is TOML, or JSON of the same structure:

    module = "digits.py:cnn"        # called with `arguments`, it returns a torch.nn.Module;
    arguments = { width = 16 }      # a Python file next to this one, or an importable module ("package.networks:cnn")
    batch = "digits.py:batch"       # batch(size, seed) -> (inputs, targets): tensors, or tuples of tensors
    batch_size = 32
    loss = "cross_entropy"          # a function of torch.nn.functional, or "digits.py:loss": loss(outputs, targets) -> scalar
    device = "here"                 # or a file that describes one

    [optimiser]
    kind = "sgd"                    # sgd, adam, adamw
    lr = 0.1
    momentum = 0.9

    [devices]                       # for `bricolage train plan` alone
    here = 4                        # processes on this machine; or tables [[devices.device]] and [[devices.link]]

Reading a file runs nothing; `bricolage.train.step.step.build` imports and runs the Python that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from bricolage.base.codec import DecodeError, Matching, Within, decode, read_file
from bricolage.device.description import DeviceTables
from bricolage.errors import BadTrainingSpec, MissingFile

T = TypeVar("T")

Entry: TypeAlias = Annotated[
    str,
    Matching(
        r"[^:\n]{1,400}:[A-Za-z_][A-Za-z0-9_.]{0,200}", "place of a function ('file.py:name' or 'package.module:name')"
    ),
]
Loss: TypeAlias = Annotated[
    str,
    Matching(
        r"[^:\n]{1,400}(:[A-Za-z_][A-Za-z0-9_.]{0,200})?", "loss (a name of torch.nn.functional, or 'file.py:name')"
    ),
]
Seed: TypeAlias = Annotated[int, Within(0, 2**63 - 1)]
Argument: TypeAlias = bool | int | float | str


@dataclass(frozen=True)
class Optimiser:
    """An optimiser of `torch.optim` and its parameters, as its documentation names them."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Within(0.0, 1e6)] = 0.01
    momentum: Annotated[float, Within(0.0, 1.0)] = 0.0
    """Of SGD."""
    nesterov: bool = False
    """Of SGD."""
    betas: tuple[Annotated[float, Within(0.0, 1.0)], Annotated[float, Within(0.0, 1.0)]] = (0.9, 0.999)
    """Of Adam and AdamW."""
    eps: Annotated[float, Within(0.0, 1.0)] = 1e-8
    """Of Adam and AdamW."""
    weight_decay: Annotated[float, Within(0.0, 1e3)] = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and (self.kind != "sgd" or self.momentum == 0.0):
            raise ValueError("nesterov needs SGD with a momentum")


@dataclass(frozen=True)
class StepSpec:
    """One training step. Paths in it are relative to `folder`, where its file lies."""

    module: Entry
    batch: Entry
    loss: Loss = "cross_entropy"
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    batch_size: Annotated[int, Within(1, 1 << 20)] = 32
    optimiser: Optimiser = Optimiser()
    device: Annotated[str, Matching(r"[^\n]{1,400}", "device ('here', or a file)")] = "here"
    seed: Seed = 0
    """Of the weights at the start, and of the batch."""
    devices: DeviceTables | None = None
    """Several, among which the step is divided (`bricolage train plan`)."""
    folder: str = "."


StepOrFile: TypeAlias = Annotated[str, Matching(r"[^\n]{1,400}", "file of a training step")] | StepSpec
"""A training step in another file: a table, or the name of a file in the same folder."""


def read_spec(path: Path) -> StepSpec:
    """The training step that a file describes.

    Raises:
        MissingFile: there is no such file.
        BadTrainingSpec: it cannot be read, or describes no training step.
    """
    return read_as(StepSpec, path)


def read_step(given: str | StepSpec, path: Path) -> StepSpec:
    """The training step that another file has as a table, or names.

    Args:
        given: what it has.
        path: that file; a named one lies in its folder.

    Raises:
        MissingFile: there is no such file.
        BadTrainingSpec: it cannot be read, describes no training step, or is a table with a folder.
    """
    folder = path.resolve().parent
    if isinstance(given, str):
        return read_spec(folder / given)
    if given.folder != ".":
        raise BadTrainingSpec(path=path, reason="it.step has the unknown field 'folder'")
    return replace(given, folder=str(folder))


def read_as(kind: type[T], path: Path) -> T:
    """A file as a dataclass with a field `folder`, which becomes the folder that the file lies in.

    Raises:
        MissingFile: there is no such file.
        BadTrainingSpec: it cannot be read, or does not fit the dataclass.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        content = read_file(path)
        if not isinstance(content, dict):
            raise DecodeError("it is no table")
        if "folder" in content:
            raise DecodeError("it has the unknown field 'folder'")
        return decode(kind, {**content, "folder": str(path.resolve().parent)}, "it")
    except DecodeError as error:
        raise BadTrainingSpec(path=path, reason=str(error)) from error
