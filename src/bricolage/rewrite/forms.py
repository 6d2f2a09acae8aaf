"""Forms of a graph: equal graphs among which placement and the race choose."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bricolage.errors import EndlessRewriting
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from bricolage.rewrite.apply import Application, counts, rewrite
from bricolage.rewrite.catalogue import rules

_LOG = logging.getLogger(__name__)

ORIGINAL = "original"
REWRITTEN = "rewritten"


@dataclass(frozen=True)
class Form:
    """One of the equal graphs of a model: the original, or what rewriting made of it."""

    name: str
    graph: Graph
    applications: tuple[Application, ...] = ()

    @property
    def rules(self) -> dict[str, int]:
        """How often each rule was applied, by name, most often first."""
        return counts(self.applications)


def rewritten(graph: Graph) -> tuple[Form, ...]:
    """The graph with every rule applied that is a gain; empty where none is. The same every time."""
    model = graph.model.clone()
    model.graph.name = (
        f"{graph.model.graph.name} {REWRITTEN}"  # its regions' files must not be taken for the original's
    )
    try:
        applications = tuple(rewrite(model, rules()))
    except EndlessRewriting as error:
        _LOG.warning("the graph is used as it is: %s", error)
        return ()
    return (Form(REWRITTEN, simplify(model), applications),) if applications else ()
