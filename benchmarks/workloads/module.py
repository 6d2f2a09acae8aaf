"""The base class of the networks: PyTorch ships no types that `mypy --strict` may follow here, so it is named once."""

from torch import nn


class Module(nn.Module):  # type: ignore[misc]
    """A PyTorch module."""
