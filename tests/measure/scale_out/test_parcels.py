"""Files on their way: regions arrive as they were, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from bricolage.backends.content import content_key
from bricolage.backends.interface import RegionModel
from bricolage.base import sealed
from bricolage.graph.graph import Graph, Region
from bricolage.graph.store import Store
from bricolage.measure.scale_out.parcels import Received, Sender, install, name_of, pack_folder

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[4,64] x) => (float[4,64] y) <float[64,64] w, float[64,64] v> { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / "store"
    folder.mkdir()
    return Store(folder)


@pytest.fixture
def graph(store: Store) -> Graph:
    proto = parser.parse_model(MODEL)
    for seed, name in enumerate("wv"):
        values = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    model = ir.from_proto(proto)
    store.share([model])
    return Graph(model)


def test_a_region_arrives_with_its_weights_and_is_the_same(store: Store, graph: Graph, tmp_path: Path) -> None:
    path = store.region(graph.everything, "everything")
    sender, received = Sender(), Received(tmp_path)
    parcel = sender.region(path)
    assert len(parcel.needs) == 3
    for name in parcel.needs:
        received.put(name, sender.read(name))
    there = RegionModel(received.path(parcel.name))
    assert content_key(there) == content_key(RegionModel(path))
    for name in "wv":
        sent, arrived = (RegionModel(one).model.graph.initializers[name].const_value for one in (path, there.path))
        assert sent is not None and arrived is not None
        np.testing.assert_array_equal(sent.numpy(), arrived.numpy())


def test_weights_that_regions_share_have_one_name(store: Store, graph: Graph) -> None:
    sender = Sender()
    whole = sender.region(store.region(graph.everything, "everything"))
    first = sender.region(store.region(Region(graph, 0b1), "first"))
    assert set(first.needs) - {first.name} < set(whole.needs)
    assert len(first.needs) == 2


def test_what_arrives_is_what_was_named(tmp_path: Path) -> None:
    received = Received(tmp_path)
    good = name_of(b"content")
    received.put(good, b"content")
    assert received.read(good) == b"content"
    for name, content in ((good, b"other"), ("../" + good[3:], b"content"), ("x", b"content")):
        with pytest.raises(ValueError, match="something else"):
            received.put(name, content)


def test_a_file_that_has_changed_is_not_sent(tmp_path: Path) -> None:
    file, sender = tmp_path / "values.npz", Sender()
    file.write_bytes(b"one")
    name = sender.file(file, ".npz")
    assert sender.read(name) == b"one"
    file.write_bytes(b"two")
    with pytest.raises(ValueError, match="has changed"):
        sender.read(name)


def test_compiled_code_is_installed_once_and_sealed(tmp_path: Path) -> None:
    with sealed.making(tmp_path / "there" / "native-1") as folder:
        (folder / "parts").mkdir()
        (folder / "region.so").write_bytes(b"code")
        (folder / "parts" / "weights.bin").write_bytes(b"weights")
    files, contents = pack_folder(tmp_path / "there" / "native-1")
    assert set(files) == {"region.so", "parts/weights.bin"}
    here = tmp_path / "here"
    assert install(here, "native-1", files, contents.__getitem__)
    assert sealed.intact(here / "native-1")
    assert (here / "native-1" / "parts" / "weights.bin").read_bytes() == b"weights"
    assert not install(here, "native-1", files, contents.__getitem__)


@pytest.mark.parametrize(
    ("folder", "files"),
    [
        ("native-1", {"../outside": name_of(b"code")}),
        ("native-1", {"/tmp/outside": name_of(b"code")}),
        ("native-1", {sealed.SEAL: name_of(b"code")}),
        ("../native-1", {"region.so": name_of(b"code")}),
        ("native-1", {"region.so": name_of(b"other code")}),
        ("native-1", {}),
    ],
)
def test_nothing_is_installed_elsewhere_or_damaged(tmp_path: Path, folder: str, files: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        install(tmp_path / "here", folder, files, lambda _name: b"code")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
