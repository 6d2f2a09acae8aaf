"""Hyper-parameters found by search, whose trials are trained as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.errors import BadOption
from bricolage.train.fuse.fuse import How, parse_how
from bricolage.train.fuse.hyperparameter_search import SearchedModels, tune
from bricolage.train.fuse.search_spec import Search, read_search


@dataclass(frozen=True)
class SearchRequest:
    """A search, and the way to train its trials."""

    search: Search
    how: How


def open_search(
    path: Path, how: str = "auto", *, trials: int | None = None, together: int | None = None
) -> SearchRequest:
    """The search that a file describes, with `trials` in all and `together` at once instead of the file's where they are given.

    Raises:
        BadOption: there is no way to train of the name `how`, or trials that are trained so cannot be pruned.
        MissingFile, BadTrainingSpec: the file cannot be used.
    """
    way = parse_how(how)
    search = read_search(path)
    search = replace(search, trials=trials or search.trials, together=together or search.together)
    if way.endswith("processes") and search.pruner != "none":
        raise BadOption(
            option="--how", value=how, advice='Processes are not watched: set pruner = "none", or use fused'
        )
    return SearchRequest(search, way)


def search_parameters(
    request: SearchRequest,
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> SearchedModels:
    """Runs all trials of a search.

    Args:
        request: of `open_search`.
        threads: cores to use; all by default.
        memory_bytes: that trials which are trained as one may take; by default most of what is free.
        progress: told about trials.

    Raises:
        MissingLibrary, BadTrainingCode, BadTrainingSpec: as `hyperparameter_search.tune`.
    """
    return tune(request.search, request.how, threads, progress, memory_limit=memory_bytes)
