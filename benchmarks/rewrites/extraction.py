"""Extraction from e-graphs: `python -m benchmarks.rewrites.extraction`.

For each instance: the better of the two greedy choices, what `extract` finds, its lower bound and gap, and the seconds of the
whole call on one core. Instances are the e-graphs of `--folder` (JSON of extraction-gym; the four under tests/data/egraphs
unless told otherwise) and the random families of `egraph_families`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import scipy.optimize  # noqa: F401  (so that the first instance does not pay for the import)

from benchmarks.rewrites.egraph_families import FAMILIES
from bricolage.egraph.extraction.extraction_problem import ExtractionNode, ExtractionProblem, choice_cost, restrict
from bricolage.egraph.extraction.greedy import greedy_dag, greedy_tree
from bricolage.egraph.extraction.methods import ExtractionLimits, Method, extract
from bricolage.errors import BadExtractionProblem, MissingFile

SIZES = (1_000, 5_000, 20_000)
FOLDER = Path(__file__).parents[2] / "tests" / "data" / "egraphs"


@dataclass(frozen=True)
class Row:
    """One instance; costs and bound are in the instance's own unit."""

    name: str
    nodes: int
    classes: int
    greedy: float
    found: float
    bound: float
    gap: float
    proven: bool
    seconds: float


def read_egraph(path: Path) -> ExtractionProblem:
    """The e-graph in a file of `egraphs-good/extraction-gym`, in whose JSON e-graphs for extraction are exchanged.

    A node's key is its name there.
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


def measure(name: str, problem: ExtractionProblem, method: Method, limits: ExtractionLimits) -> Row:
    """Extracts once. Fails loudly should the answer be no acyclic choice of the price it claims."""
    greedy = min(choice_cost(problem, choice) for choice in (greedy_tree(problem), greedy_dag(problem)))
    found = extract(problem, method, limits)
    if restrict(problem, found.choice) != found.choice or choice_cost(problem, found.choice) != found.cost:
        raise AssertionError(f"{name}: not a valid extraction")
    return Row(
        name,
        problem.node_count,
        len(problem.classes),
        greedy,
        found.cost,
        found.lower_bound,
        found.gap,
        found.proven,
        found.seconds,
    )


def instances(
    folder: Path | None, families: Sequence[str], sizes: Sequence[int], seed: int
) -> Iterator[tuple[str, Callable[[], ExtractionProblem]]]:
    """Names, and how to make the problem."""
    for path in sorted(folder.glob("*.json")) if folder is not None else ():
        yield path.stem, lambda path=path: read_egraph(path)  # type: ignore[misc]
    for family in families:
        for size in sizes:
            yield f"{family}-{size}", lambda family=family, size=size: FAMILIES[family](size, seed)  # type: ignore[misc]


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| e-graph | nodes | classes | greedy | ours | bound | gap | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.name} | {row.nodes:,} | {row.classes:,} | {row.greedy:.6g} | {row.found:.6g} | {row.bound:.6g} | "
        f"{'proven' if row.proven else f'{row.gap:.1%}'} | {row.seconds:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--family", action="append", choices=[*FAMILIES, "none"], help="default: all")
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=list(SIZES))
    parser.add_argument("--method", choices=["tree", "dag", "exact", "anytime"], default="anytime")
    parser.add_argument("--seconds", type=float, default=10.0, help="limit for each instance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="also write the rows as JSON")
    options = parser.parse_args(arguments)
    families = [] if options.family == ["none"] else options.family or list(FAMILIES)
    limits = ExtractionLimits(options.seconds, options.seed)
    rows = []
    for name, make in instances(options.folder, families, options.sizes, options.seed):
        rows.append(measure(name, make(), options.method, limits))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
