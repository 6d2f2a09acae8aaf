"""How far a search goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from bricolage.base.option_words import SearchMethod
from bricolage.egraph.extraction.methods import ExtractionLimits
from bricolage.egraph.saturate import SaturationLimits
from bricolage.errors import BadOption
from bricolage.search.key_policy import KeyPolicy

Method = SearchMethod
METHODS: tuple[Method, ...] = get_args(SearchMethod)
_SATURATION = SaturationLimits(rounds=6, nodes=2_000, seconds=10.0, multi_rounds=2)
_EXTRACTION = ExtractionLimits(seconds=5.0)


def parse_method(word: str) -> Method | None:
    """The method of a word; None for "none", which is no search.

    Raises:
        BadOption: there is no such method.
    """
    if word == "none":
        return None
    for method in METHODS:
        if method == word:
            return method
    raise BadOption(option="--search", value=word, advice=f"Use one of: none, {', '.join(METHODS)}")


@dataclass(frozen=True)
class SearchOptions:
    """Limits of a search. It is deterministic as long as none of those in seconds is reached.

    method      backtracking over whole graphs, equality saturation, or random keys over applications, drawn as a policy says where
                they are learned
    alpha       a graph is looked into while it costs less than alpha times the best; 1 is greedy
    graphs      how many graphs of each part are looked into
    seconds     for everything
    part        operators of a part, at most
    passes      how often the graph is cut into parts, each time elsewhere
    seed        of chance, where the method draws
    retrace     whether what saturation found is sought again step by step, with the rules that it rests on alone, so that it can
                be repeated
    keep        how many graphs are returned, at most
    policy      of learned keys; None for the one that comes with the package
    saturation, extraction   limits for one part

    Raises:
        BadOption: a number makes no sense.
    """

    method: Method = "backtrack"
    alpha: float = 1.05
    graphs: int = 60
    seconds: float = 60.0
    part: int = 40
    passes: int = 2
    keep: int = 3
    seed: int = 0
    retrace: bool = False
    policy: KeyPolicy | None = field(default=None, repr=False)
    saturation: SaturationLimits = _SATURATION
    extraction: ExtractionLimits = _EXTRACTION

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadOption(option="method", value=self.method, advice=f"Use one of: {', '.join(METHODS)}")
        if not self.alpha >= 1.0:
            raise BadOption(option="alpha", value=self.alpha, advice="It is at least 1, which is greedy")
        if not self.seconds > 0.0:
            raise BadOption(option="seconds", value=self.seconds, advice="It is more than 0")
        for name, least in (("graphs", 1), ("part", 2), ("passes", 1), ("keep", 1)):
            if getattr(self, name) < least:
                raise BadOption(option=name, value=getattr(self, name), advice=f"It is at least {least}")
