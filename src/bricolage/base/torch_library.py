"""PyTorch, for what trains: imported when it is first needed."""

from __future__ import annotations

from typing import Any

from bricolage.base import telemetry
from bricolage.errors import MissingLibrary


def load_torch() -> Any:
    """PyTorch.

    Raises:
        MissingLibrary: it is not installed.
    """
    telemetry.disable()
    try:
        import torch
    except ImportError as error:
        raise MissingLibrary(name="PyTorch", purpose="to train", reason=error, extra="train") from error
    return torch
