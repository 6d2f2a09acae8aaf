"""Which learnt model of costs decisions use: the user's own, or the one that bricolage comes with."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from bricolage.base.cache import cache_directory
from bricolage.costs.models.learned.model import LearnedCosts, load_costs
from bricolage.errors import BadCostModel, MissingFile

_LOG = logging.getLogger(__name__)
SHIPPED = Path(__file__).parent / "shipped.json"


def own_model() -> Path:
    """Where decisions look for a model of the user's own.

    Raises:
        UnsafeCache: the cache folder is not the user's alone.
    """
    return cache_directory() / "cost-model.json"


def model_in_use() -> LearnedCosts | None:
    """The user's own model, or else the one that bricolage comes with. One that cannot be used is left out with a warning, and the
    next takes its place; None where none is left.

    Raises:
        UnsafeCache: as `own_model`.
    """
    for path in (own_model(), SHIPPED):
        try:
            facts = path.stat()
        except OSError:
            continue
        model = _read(path, facts.st_mtime_ns, facts.st_size)
        if model is not None:
            return model
    return None


@cache
def _read(path: Path, changed: int, size: int) -> LearnedCosts | None:
    """Of a file as it is at a time, read once in a process."""
    del changed, size
    try:
        return load_costs(path)
    except (BadCostModel, MissingFile) as error:
        _LOG.warning("%s; `bricolage costs train` makes another", error.sentence)
        return None
