"""The values that a model takes and gives."""

from __future__ import annotations

from typing import Any, TypeAlias

ModelValue: TypeAlias = Any
"""A numpy array; a list of values for a sequence, a dict for a map, None for an empty optional. Callers may give torch tensors,
numbers and nested lists of numbers instead of arrays. Which of these a value is follows from the model: no static type says it."""
