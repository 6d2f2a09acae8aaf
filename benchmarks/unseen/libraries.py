"""Libraries of the extra `unseen`: imported when they are asked for, with a clear sentence where one is missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from bricolage.errors import MissingLibrary

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def library(name: str) -> ModuleType:
    """Imports a library of the extra.

    Raises:
        MissingLibrary: it cannot be imported here.
    """
    try:
        _declare_operators()
        return import_module(name)
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise MissingLibrary(name=name, purpose="to build unseen networks", reason=reason, extra="unseen") from error


def _declare_operators() -> None:
    """Lets torchvision be imported beside a build of PyTorch that its kernels are not for. `timm` and `transformers` take its
    transformations alone, and only two operators that have no declaration make the import fail."""
    try:
        import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        import torch

        for operator in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, operator):
                torch.library.define(f"torchvision::{operator}", _SIGNATURE)
