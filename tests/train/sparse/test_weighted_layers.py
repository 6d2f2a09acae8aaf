"""Layers read from matrices and models compute what these do; what cannot be divided is refused with its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from scipy.io import mmwrite
from scipy.sparse import csr_array, save_npz

from bricolage.errors import BadSparseNetwork, MissingFile, NotAModel
from bricolage.train.sparse.sparse_network import run_undivided
from bricolage.train.sparse.weighted_layers import WeightedLayer, read_sparse_network
from tests.train.sparse.networks import draw_matrix

MODEL = """<ir_version: 10, opset_import: ["" : 18]> g (float[N, 2, 5] x) => (float[N, 6] y) {
 flat = Flatten (x)
 a = MatMul (flat, w)
 b = Add (c, a)
 d = Relu (b)
 e = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (d, v, f)
 y = Tanh (e)
}"""


def write_model(path: Path, text: str, **weights: np.ndarray) -> Path:
    model = onnx.parser.parse_model(text)
    arrays = {name: numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()}
    model.graph.initializer.extend(arrays.values())
    onnx.save(model, path)
    return path


def test_a_model_is_its_products(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    w, v = draw_matrix(8, 10, 0).T.toarray(), draw_matrix(6, 8, 1).toarray()
    c, f = draw.standard_normal(8), draw.standard_normal(6)
    path = write_model(tmp_path / "model.onnx", MODEL, w=w, v=v, c=c, f=f)
    layers = read_sparse_network([path])
    assert [layer.activation for layer in layers] == ["relu", "tanh"]
    x = draw.standard_normal((3, 2, 5)).astype(np.float32)
    (expected,) = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    values = run_undivided(layers, x.reshape(3, 10).T.astype(np.float64), np.ones((6, 3)))
    np.testing.assert_allclose(values.outputs.T, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "none"])
def test_gradients_are_those_of_pytorch(activation: str) -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    matrices = [draw_matrix(7, 5, 2), draw_matrix(6, 7, 3)]
    layers = [WeightedLayer("layer", matrix, draw.standard_normal(matrix.shape[0]), activation) for matrix in matrices]
    x, gradient = draw.standard_normal((5, 4)), draw.standard_normal((6, 4))
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, *(matrix.toarray() for matrix in matrices))]
    now = leaves[0]
    for layer, weights in zip(layers, leaves[1:], strict=True):
        now = weights @ now + torch.tensor(layer.bias)[:, None]
        now = now if activation == "none" else getattr(torch, activation)(now)
    now.backward(torch.tensor(gradient))
    values = run_undivided(layers, x, gradient)
    np.testing.assert_allclose(values.outputs, now.detach().numpy())
    np.testing.assert_allclose(values.input_gradient, leaves[0].grad.numpy())
    for matrix, leaf, weight_gradient in zip(matrices, leaves[1:], values.weight_gradients, strict=True):
        rows, columns = matrix.tocoo().coords
        np.testing.assert_allclose(weight_gradient, leaf.grad.numpy()[rows, columns])


def test_both_kinds_of_matrices_are_read(tmp_path: Path) -> None:
    matrix = draw_matrix(6, 6, 4)
    mmwrite(tmp_path / "a.mtx", matrix)
    save_npz(tmp_path / "b.npz", matrix)
    first, second = read_sparse_network([tmp_path / "a.mtx", tmp_path / "b.npz"])
    np.testing.assert_allclose(first.weights.toarray(), matrix.toarray())
    np.testing.assert_array_equal(second.weights.toarray(), matrix.toarray())
    assert read_sparse_network([tmp_path / "b.npz"], repeat=3)[2].weights.shape == (6, 6)


def write_refused(folder: Path) -> dict[str, tuple[list[Path], str]]:
    """By name what is given, and a part of the reason."""
    holes = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    arrays = {
        "row": holes,
        "column": holes[[0, 2, 0]],
        "wide": np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]),
        "dense": np.ones((3, 3)),
        "infinite": np.diag([1.0, np.inf, 1.0]),
    }
    paths = {name: folder / f"{name}.npz" for name in arrays}
    for name, array in arrays.items():
        save_npz(paths[name], csr_array(array))
    for name, text in {"text.mtx": "no matrix\n", "text.npz": "no archive\n", "text.csv": "1,2\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    mmwrite(folder / "complex.mtx", csr_array(np.eye(2) * 1j))
    (folder / "cut.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 5\n1 1 2.0\n", encoding="utf-8")
    np.savez(folder / "other.npz", x=np.ones(3))
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[2, 4] x) => (float[2, 4] y) { %s }'
    softmax = write_model(folder / "softmax.onnx", text % "a = MatMul (x, w) y = Softmax (a)", w=np.eye(4))
    joined = write_model(folder / "joined.onnx", text % "a = MatMul (x, w) y = Add (a, x)", w=np.eye(4))
    none = write_model(folder / "none.onnx", text % "y = Flatten (x)")
    return {
        "empty row": ([paths["row"]], "row 2 of 'row' has no non-zero weight"),
        "empty column": ([paths["column"]], "column 3 of 'column' has no non-zero weight"),
        "do not chain": ([paths["wide"], paths["wide"]], "takes 3 inputs, and 'wide' before it has 2 rows"),
        "dense": ([paths["dense"]], "none of its weights is zero"),
        "infinite": ([paths["infinite"]], "no finite number"),
        "no MatrixMarket": ([folder / "text.mtx"], "it is not a matrix in the MatrixMarket format"),
        "no archive": ([folder / "text.npz"], "it is not a sparse matrix as scipy writes it"),
        "another archive": ([folder / "other.npz"], "it is not a sparse matrix as scipy writes it"),
        "cut": ([folder / "cut.mtx"], "it is not a matrix in the MatrixMarket format"),
        "another kind": ([folder / "text.csv"], "neither a matrix"),
        "two models": ([softmax, softmax], "neither a matrix"),
        "complex": ([folder / "complex.mtx"], "complex"),
        "softmax": ([softmax], "(Softmax) is no product"),
        "branches": ([joined], "its layers are no chain"),
        "no product": ([none], "it has no product with weights"),
    }


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    for name, (paths, reason) in write_refused(tmp_path).items():
        with pytest.raises(BadSparseNetwork) as refused:
            read_sparse_network(paths)
        assert reason in str(refused.value), (name, str(refused.value))
    with pytest.raises(MissingFile):
        read_sparse_network([tmp_path / "nothing.mtx"])
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(NotAModel):
        read_sparse_network([tmp_path / "empty.onnx"])
