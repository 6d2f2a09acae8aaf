"""Whether a network is out of sample: what may have shaped a decision before, searched for names of networks.

Searched are the track record that decisions leave things out by, the networks of other benchmarks, those that packages ship, the
sixteen of an earlier study, and the source of these benchmarks and of all tests, in which a network may be named without being
listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from benchmarks.real.catalogue import NETWORKS as PACKAGED
from benchmarks.real.more import MORE
from benchmarks.unseen.networks import NETWORKS, UnseenNetwork
from benchmarks.workloads import workloads
from bricolage.costs.models.track_record import shipped_record

EARLIER = (
    "coat",
    "dla34",
    "edgenext",
    "fastvit",
    "ghostnet",
    "hrnet",
    "inception-v4",
    "levit",
    "mixer",
    "mobilevit",
    "poolformer",
    "regnety",
    "repvgg",
    "wav2vec2",
    "whisper",
    "xcit",
)
"""Networks of an earlier study, whose results decisions learnt from."""
_ROOT = Path(__file__).parents[2]
_FOLDERS = ("benchmarks/workloads", "benchmarks/real", "tests")
_OWN_TEST = _ROOT / "tests" / "benchmarks" / "test_unseen.py"


def seen_names() -> frozenset[str]:
    """Of every network that is in the record or in another benchmark."""
    record = shipped_record()
    recorded = [*(times.name for times in record.networks), *(attempt.name for attempt in record.attempts)]
    return frozenset([*recorded, *workloads(), *(network.name for network in (*PACKAGED, *MORE)), *EARLIER])


def overlaps(networks: Iterable[UnseenNetwork] | None = None) -> list[str]:
    """A sentence for each place in which a network's name or family occurs; empty where all of them are out of sample.

    Without `networks` those of the catalogue.
    """
    chosen = tuple(NETWORKS.values() if networks is None else networks)
    terms = {term.lower() for network in chosen for term in (network.name, network.root)}
    places = [(f"the network {name}", name) for name in sorted(seen_names())]
    return [f"{term} occurs in {place}" for place, text in (*places, *_sources()) for term in _named_in(text, terms)]


def _sources() -> Iterator[tuple[str, str]]:
    """What a place is called, and its text."""
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            if path != _OWN_TEST:
                yield path.relative_to(_ROOT).as_posix(), path.read_text(encoding="utf-8")


def _named_in(text: str, terms: Iterable[str]) -> list[str]:
    """Terms that occur as words of their own, which a number may follow, with or without what joins their parts."""
    lowered = text.lower()
    near = [term for term in terms if term.partition("-")[0] in lowered]  # most are not, and this is quick
    return sorted(term for term in near if _pattern(term).search(lowered))


@cache
def _pattern(term: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){'[-_ ]?'.join(map(re.escape, term.split('-')))}(?![a-z])")
