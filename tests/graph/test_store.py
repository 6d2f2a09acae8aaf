from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.errors import NotWritable
from bricolage.graph.extract import data_files, graph_of
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.store import WEIGHTS, Store
from tests.graph.models import graph as graph_from

BYTES = 4 * 32 * 32


def product(weight: float, body: str = "a=MatMul(x,w) y=Relu(a)") -> Graph:
    """One with a weight of `BYTES` bytes."""
    return graph_from(body, "float[1,32] x", "float[1,32] y", w=np.full((32, 32), weight, np.float32))


def stored(graph: Graph) -> ir.ExternalTensor:
    """Where the weight lies now."""
    found = next(value.const_value for value in graph.model.graph.initializers.values() if value.name == "w")
    assert isinstance(found, ir.ExternalTensor)
    return found


def weight(path: Path) -> float:
    """The weight of a model on disk, all of whose elements are equal."""
    array = next(v.const_value for v in ir.load(path).graph.initializers.values() if v.name == "w")
    assert array is not None
    (found,) = np.unique(array.numpy())
    return float(found)


def whole(store: Store, graph: Graph) -> Path:
    return store.region(graph.everything, Identities(graph).key(graph.everything))


# --- weights ------------------------------------------------------------------------------------------------------


def test_equal_weights_are_written_once(tmp_path: Path) -> None:
    graphs = [product(1.0), product(1.0, "y=MatMul(x,w)"), product(2.0)]
    Store(tmp_path).share([g.model for g in graphs])
    assert (tmp_path / WEIGHTS).stat().st_size == 2 * BYTES
    assert stored(graphs[0]).offset == stored(graphs[1]).offset != stored(graphs[2]).offset
    assert [float(stored(g).numpy()[0, 0]) for g in graphs] == [1.0, 1.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS], "nothing half written is left"


def test_weights_that_the_folder_holds_are_not_written_again(tmp_path: Path) -> None:
    store, first, later = Store(tmp_path), product(1.0), product(1.0, "y=MatMul(x,w)")
    store.share([first.model])
    store.share([later.model], "later.data")
    assert Path(stored(later).path) == tmp_path / WEIGHTS
    assert not (tmp_path / "later.data").exists()


def test_only_new_weights_go_into_the_later_file(tmp_path: Path) -> None:
    store, first, later = Store(tmp_path), product(1.0), product(3.0)
    store.share([first.model])
    store.share([first.model, later.model], "later.data")
    assert (tmp_path / "later.data").stat().st_size == BYTES
    assert Path(stored(first).path).name == WEIGHTS and Path(stored(later).path).name == "later.data"
    assert weight(whole(store, first)) == 1.0 and weight(whole(store, later)) == 3.0


def test_temporary_weights_are_not_referred_to_later(tmp_path: Path) -> None:
    store, trial, kept = Store(tmp_path), product(5.0), product(5.0)
    store.share([trial.model], "trial.data", temporary=True)
    store.share([kept.model], "kept.data")
    assert Path(stored(trial).path).name == "trial.data" and Path(stored(kept).path).name == "kept.data"
    path = whole(store, kept)
    store.forget("trial.data")
    assert not (tmp_path / "trial.data").exists()
    assert data_files(path) == {"kept.data"} and weight(path) == 5.0
    store.forget("trial.data")  # once more is no error


def test_temporary_models_refer_to_lasting_weights(tmp_path: Path) -> None:
    store, first, trial = Store(tmp_path), product(1.0), product(1.0, "y=MatMul(x,w)")
    store.share([first.model])
    store.share([trial.model], "trial.data", temporary=True)
    assert Path(stored(trial).path).name == WEIGHTS and not (tmp_path / "trial.data").exists()


def test_a_file_that_is_written_anew_is_not_trusted_for_what_it_held(tmp_path: Path) -> None:
    store, old, new, later = Store(tmp_path), product(1.0), product(2.0), product(1.0, "y=MatMul(x,w)")
    store.share([old.model])
    store.share([new.model])
    store.share([later.model], "later.data")
    assert weight(whole(store, later)) == 1.0 and weight(whole(store, new)) == 2.0


def test_small_constants_stay_in_the_model(tmp_path: Path) -> None:
    graph = graph_from("y=Add(x,w)", w=np.ones(4, np.float32))
    store = Store(tmp_path)
    store.share([graph.model])
    assert not list(tmp_path.iterdir())
    assert data_files(tmp_path / store.graph(graph)) == set()


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotWritable):
        Store(tmp_path / "absent").share([product(1.0).model])


# --- graphs and regions -------------------------------------------------------------------------------------------


def test_the_name_of_a_graph_says_what_is_in_it(tmp_path: Path) -> None:
    store, graph, same, other = Store(tmp_path), product(1.0), product(1.0), product(2.0)
    store.share([graph.model, same.model, other.model])
    name = store.graph(graph)
    written = (tmp_path / name).stat().st_mtime_ns
    assert store.graph(graph) == store.graph(same) == name == f"graph-{store.digest(graph)}.onnx"
    assert (tmp_path / name).stat().st_mtime_ns == written, "it is there already"
    assert store.graph(other) != name
    back = graph_of(tmp_path / name)
    assert Identities(back).text(back.everything) == Identities(graph).text(graph.everything)
    assert weight(tmp_path / name) == 1.0


def test_another_process_finds_the_same_names(tmp_path: Path) -> None:
    store, graph = Store(tmp_path), product(1.0)
    store.share([graph.model])
    name, path = store.graph(graph), whole(store, graph)
    back = graph_of(tmp_path / name)
    assert Store(tmp_path).graph(back) == name and whole(Store(tmp_path), back) == path


def test_regions_of_equal_structure_and_other_weights_are_other_files(tmp_path: Path) -> None:
    store, one, two = Store(tmp_path), product(1.0), product(2.0)
    store.share([one.model, two.model])
    assert Identities(one).key(one.everything) == Identities(two).key(two.everything)
    paths = [whole(store, one), whole(store, two)]
    assert paths[0] != paths[1] and [weight(path) for path in paths] == [1.0, 2.0]
    assert whole(store, one) == paths[0]


def test_equal_regions_of_one_graph_are_other_files(tmp_path: Path) -> None:
    """They read and write tensors of other names."""
    graph = graph_from("a=Relu(x) b=Abs(a) c=Relu(b) y=Abs(c)")
    store, identities = Store(tmp_path), Identities(graph)
    regions = [graph.region(0b0011), graph.region(0b1100)]
    (key,) = {identities.key(region) for region in regions}
    paths = [store.region(region, key) for region in regions]
    assert paths[0] != paths[1] and all(key[:16] in path.name for path in paths)
    outputs = [[value.name for value in ir.load(path).graph.outputs] for path in paths]
    assert outputs == [["b"], ["y"]]


def test_nothing_else_lies_in_the_folder(tmp_path: Path) -> None:
    store, graph = Store(tmp_path), product(1.0)
    store.share([graph.model])
    expected = {WEIGHTS, store.graph(graph), whole(store, graph).name}
    assert set(os.listdir(tmp_path)) == expected


def test_threads_write_the_same_region_at_once(tmp_path: Path) -> None:
    graphs = [product(1.0) for _ in range(4)]
    store = Store(tmp_path)
    store.share([graph.model for graph in graphs])
    for turn in range(20):
        together, fresh = threading.Barrier(len(graphs)), Store(tmp_path)

        def write(graph: Graph, together: threading.Barrier = together, store: Store = fresh) -> Path:
            together.wait()
            return whole(store, graph)

        with ThreadPoolExecutor(len(graphs)) as threads:
            (path,) = set(threads.map(write, graphs))
        assert weight(path) == 1.0, turn
        path.unlink()
        assert [left.name for left in tmp_path.iterdir()] == [WEIGHTS]
