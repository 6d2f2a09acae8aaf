"""The catalogue of networks out of sample: none of them was seen, each entry says what it is. No library of the extra is needed."""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.unseen import NETWORKS, UnseenNetwork, export, overlaps, seen_names
from benchmarks.unseen.__main__ import Row, main, table
from benchmarks.unseen.libraries import library
from benchmarks.unseen.networks import folder
from bricolage.errors import MissingLibrary
from bricolage.extras import install_command

ROOT = Path(__file__).parents[2]
every = pytest.mark.parametrize("network", NETWORKS.values(), ids=list(NETWORKS))


def test_none_was_seen() -> None:
    assert overlaps() == []


def renamed(name: str, root: str) -> UnseenNetwork:
    return dataclasses.replace(next(iter(NETWORKS.values())), name=name, root=root)


@pytest.mark.parametrize(
    ("name", "root", "place"),
    [
        ("swin-small", "swin", "the network swin-tiny"),  # the record
        ("regnety-002", "regnety", "the network regnety"),  # an earlier study
        ("another", "yolo-v4", "benchmarks/workloads/registry.py"),
        ("wake-alexa", "wake", "the network wake-alexa"),  # what packages ship
    ],
)
def test_a_name_or_a_family_that_was_seen_is_told(name: str, root: str, place: str) -> None:
    assert any(sentence.endswith(f"occurs in {place}") for sentence in overlaps([renamed(name, root)]))


def test_a_part_of_a_word_is_another_word() -> None:
    assert overlaps([renamed("resne", "zzz")]) == []
    assert "swin-tiny" in seen_names() and not seen_names() & NETWORKS.keys()


def test_there_are_enough_of_each_family() -> None:
    assert len(NETWORKS) >= 18
    families = [network.family for network in NETWORKS.values()]
    least = {"vision": 6, "text": 3, "speech": 3, "recommendation": 3, "graph": 2, "detection": 2}
    assert {family: families.count(family) for family in least if families.count(family) < least[family]} == {}
    assert len({network.root for network in NETWORKS.values()}) == len(NETWORKS), "one of each architecture"


@every
def test_entries_are_well_formed(network: UnseenNetwork) -> None:
    assert NETWORKS[network.name] is network and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", network.name)
    assert re.search(r"(19|20)\d\d$", network.paper), "an author, and a year at the end"
    assert network.outputs and (ROOT / "benchmarks" / "unseen" / f"{network.build.file}.py").exists()
    assert (network.source == "timm") == (network.build.file == "pictures")
    first, again, other = network.inputs(0), network.inputs(0), network.inputs(1)
    for name, array in first.items():
        assert np.array_equal(array, again[name]) and array.shape == other[name].shape, name
        assert array.dtype in (np.float32, np.int64) and np.isfinite(array).all(), name
        assert array.flags.c_contiguous, name
    assert any(not np.array_equal(first[name], other[name]) for name in first), "a seed changes something"


def test_a_file_in_the_cache_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_WORKLOADS", str(tmp_path))
    kept = folder(NETWORKS["pit-xs"])
    kept.mkdir(parents=True)
    path, inputs = export("pit-xs")
    assert kept.is_relative_to(tmp_path) and path == kept / "pit-xs.onnx" and inputs["image"].shape == (1, 3, 224, 224)
    with pytest.raises(KeyError):
        export("nothing")


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_WORKLOADS", str(tmp_path))
    for name in ("torch", "torchvision", "timm"):
        monkeypatch.setitem(sys.modules, name, None)
    for missing, ask in (("timm", lambda: library("timm")), ("torch", lambda: export("pit-xs"))):
        with pytest.raises(MissingLibrary, match=f"{missing} is needed to build unseen networks") as caught:
            ask()
        assert install_command("unseen") in caught.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_the_extra_is_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = [re.split(r"[>=<]", one)[0] for one in project["optional-dependencies"]["unseen"]]
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert {"timm", "torchvision", "torch-geometric", "transformers"} <= set(extra) <= pinned
    assert "unseen" not in str(project["optional-dependencies"]["dev"])


def test_the_table_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row("gat", "graph", "torch-geometric", 95, 60, 0.3, 2.5, 2e-7)
    assert table([row]).splitlines()[-1] == "| gat | graph | torch-geometric | 95 | 60 | 0.3 | 2.5 | 2.0e-07 |  |"
    assert main(["--list", "--only", "gat,deepfm"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "gat: graph, torch-geometric; Veličković et al., ICLR 2018"
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
