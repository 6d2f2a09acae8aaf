"""Targets that Ray nodes decide on: what is taken over from them, what is refused, and all of it on a real node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bricolage
from bricolage.api.pack import pack
from bricolage.base import scratch
from bricolage.base.codec import encode
from bricolage.base.options import Options, available_cores
from bricolage.driver.packs.pack_making import make_pack
from bricolage.driver.packs.pack_nodes import NodeTask, PackNodes, PackStation, taken_over
from bricolage.driver.sources import GivenModel, open_source, working_folder
from bricolage.errors import BadOption, BadTargets, PackNodeFailed, UnreachableCluster
from bricolage.graph.extract import data_files
from bricolage.plan import artifact
from bricolage.plan.pack import PackTarget, tree
from tests.api.test_optimize import NET, expected, sample, weights
from tests.graph.models import parse
from tests.ray_nodes import imports, ray_network

pytestmark = pytest.mark.usefixtures("light_reference")
OPTIONS = Options(backends=("onnxruntime",), effort="instant", budget_s=6.0, shapes={"batch": (1,)})
AFAR = PackTarget("afar", threads=1, ray="edge")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))


def test_what_a_node_decided_is_taken_over(tmp_path: Path) -> None:
    """The station's own work, in this process: its plans run over the weights that are here, which are not brought again."""
    directory = working_folder()
    opened = open_source(GivenModel(parse(NET, **weights()), inputs={"x": sample(1)}), OPTIONS, directory)
    before = {path.name for path in directory.iterdir()}
    files = {
        name: (directory / name).read_bytes() for name in (artifact.MODEL, *data_files(directory / artifact.MODEL))
    }
    task = encode(NodeTask((replace(AFAR, ray=""),), OPTIONS, False))
    content, reason = PackStation({}, make_pack).pack(task, files, opened.inputs)  # type: ignore[arg-type]
    assert not reason
    found = taken_over(content, [AFAR], opened)["afar"]
    assert found.entry.target == AFAR and found.plan.digest == opened.digest and found.plan.model == opened.name
    assert {path.name for path in directory.iterdir()} - before <= {
        bucket.program.graph for bucket in found.plan.buckets
    }
    path = tmp_path / "net.bricolage"
    artifact.save(found.plan, directory, path)
    for actual, wanted in zip(bricolage.load(path)(sample(1)), expected(sample(1)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(PackNodeFailed, match="lacks other"):
        taken_over(content, [replace(AFAR, name="other")], opened)
    with pytest.raises(PackNodeFailed, match="edge"):
        taken_over(content[:100], [AFAR], opened)
    many = encode(NodeTask((PackTarget("many", threads=available_cores() + 1),), OPTIONS, False))
    content, reason = PackStation({}, make_pack).pack(many, files, None)  # type: ignore[arg-type]
    assert content == b"" and "target 'many' has" in reason
    scratch.remove(directory)


def test_targets_of_another_machine() -> None:
    """They start from targets of the same node alone, and a cluster has to be named for them and only for them."""
    here, tight = PackTarget("here"), replace(AFAR, name="tight", memory_mb=500)
    assert [(one.name, above and above.name) for one, above in tree((here, tight, AFAR))] == [
        ("here", None),
        ("afar", None),
        ("tight", "afar"),
    ]
    with pytest.raises(ValueError, match="measured on a node"):
        PackTarget("x", ray="edge", scale=2.0)
    with pytest.raises(BadTargets, match=r"target 'afar' is for a node with 'edge', and no Ray cluster is named"):
        pack(parse(NET, **weights()), (AFAR,), "x.pack", OPTIONS)
    with pytest.raises(BadOption, match="--ray"):
        pack(parse(NET, **weights()), (here,), "x.pack", OPTIONS, ray="127.0.0.1:1")
    with pytest.raises(UnreachableCluster):
        pack(parse(NET, **weights()), (AFAR,), "x.pack", OPTIONS, ray="127.0.0.1:1")


@pytest.mark.slow  # starts a Ray cluster of two nodes, and decides three times: half a minute
def test_a_ray_node_decides_on_its_targets(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    variables = {**imports(), "BRICOLAGE_CACHE": str(tmp_path / "node-cache")}
    targets = (PackTarget("here"), AFAR, replace(AFAR, name="rough", precision="medium"))
    with ray_network() as network:
        doomed = network.add_node(num_cpus=1, resources={"edge": 1}, env_vars=variables)
        with pytest.raises(PackNodeFailed, match="no node of the cluster offers it"):
            PackNodes(network.address, [replace(AFAR, ray="other")], make_pack)
        waiting = PackNodes(network.address, [AFAR], make_pack)
        opened = open_source(GivenModel(parse(NET, **weights())), OPTIONS, working_folder())
        waiting.begin(opened, OPTIONS, False)
        network.remove_node(doomed, allow_graceful=False)
        with pytest.raises(PackNodeFailed, match="the node was lost"):
            waiting.take(opened)
        waiting.close()
        network.add_node(num_cpus=1, resources={"edge": 1}, env_vars=variables)
        found = pack(parse(NET, **weights()), targets, tmp_path / "net.pack", OPTIONS, ray=network.address)
        assert not ray.is_initialized()
    assert [(one.target.name, one.parent) for one in found.pack.entries] == [
        ("here", ""), ("afar", "rough"), ("rough", ""),
    ]  # fmt: skip
    assert (tmp_path / "node-cache" / "costs.sqlite").exists() or list((tmp_path / "node-cache").iterdir())
    assert all(entry.median_ms and entry.resident_bytes for entry in found.pack.entries)
    loaded = bricolage.load(tmp_path / "net.pack", target="afar")
    assert loaded.plan.provenance.options.threads == 1
    for actual, wanted in zip(loaded(sample(1)), expected(sample(1)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    index = json.dumps(encode(found.pack))
    assert '"ray": "edge"' in index and '"measured_on"' in index
