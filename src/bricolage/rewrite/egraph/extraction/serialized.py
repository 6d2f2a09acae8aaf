"""Reads the JSON of `egraphs-good/extraction-gym`, in which e-graphs for extraction are exchanged."""

from __future__ import annotations

import json
from pathlib import Path

from bricolage.errors import BadExtractionProblem, MissingFile
from bricolage.rewrite.egraph.extraction.problem import ExtractionNode, ExtractionProblem


def read_egraph(path: Path) -> ExtractionProblem:
    """The e-graph in `path`; a node's key is its name there.

    `nodes` maps a name to `op`, `cost`, `eclass` and `children`, which name nodes but mean their classes; `root_eclasses`
    lists classes. Raises MissingFile, and BadExtractionProblem for a file that is something else.
    """
    if not path.is_file():
        raise MissingFile(path=str(path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        nodes = content["nodes"]
        numbers = {name: position for position, name in enumerate(dict.fromkeys(n["eclass"] for n in nodes.values()))}
        classes: list[list[ExtractionNode]] = [[] for _ in numbers]
        for name, node in nodes.items():
            children = dict.fromkeys(numbers[nodes[child]["eclass"]] for child in node["children"])
            classes[numbers[node["eclass"]]].append(ExtractionNode(float(node["cost"]), tuple(children), name))
        roots = tuple(numbers[root] for root in content["root_eclasses"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadExtractionProblem(where=f"'{path}'", reason=f"is not a serialised e-graph: {error!r}") from error
    return ExtractionProblem(tuple(tuple(nodes) for nodes in classes), roots)
