"""Operators that PyTorch's exporter leaves out, or writes wrongly: as ONNX they give what they give in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")

from torch.nn import functional  # noqa: E402

from bricolage.frontends.torch_module import from_torch  # noqa: E402

Results = Sequence[Any]


def exported(compute: Callable[..., Results], *inputs: Any) -> None:
    """Compares what is exported with PyTorch; all results of one module, since an export takes half a second."""

    class Module(torch.nn.Module):
        def forward(self, *given: Any) -> Results:
            return compute(*given)

    model = from_torch(Module(), inputs)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {info.name: one.numpy() for info, one in zip(session.get_inputs(), inputs, strict=True)}
    wanted = compute(*inputs)
    found = session.run(None, feeds)
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(
            torch.from_numpy(one), other, rtol=1e-5, atol=1e-6, msg=lambda words, at=number: f"result {at}: {words}"
        )


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("padding", [None, 3])
def test_embedding_bags(padding: int | None) -> None:
    weight, words = torch.randn(16, 4), torch.tensor([1, 2, 3, 3, 5, 6, 7, 8])

    def compute(words: Any, begins: Any, ends: Any, shares: Any) -> Results:
        bag = functional.embedding_bag
        modes = ("sum", "mean", "max")
        return (
            *(bag(words, weight, begins, mode=one, padding_idx=padding) for one in modes),
            *(bag(words, weight, ends, mode=one, padding_idx=padding, include_last_offset=True) for one in modes),
            *(bag(words.view(2, 4), weight, mode=one, padding_idx=padding) for one in modes),
            bag(words, weight, begins, mode="sum", per_sample_weights=shares, padding_idx=padding),
        )

    # The third bag is empty, and so is the last one of those that end where others begin.
    exported(compute, words, torch.tensor([0, 2, 4, 4]), torch.tensor([0, 2, 4, 8, 8]), torch.rand(8))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of what is deprecated and of what may change
def test_scattered_values_are_reduced() -> None:
    at, order = torch.randint(16, (8, 16)), torch.tensor([0, 1, 0, 2, 3, 4, 5, 6])

    def compute(x: Any, whole: Any) -> Results:
        words = ("sum", "prod", "mean", "amax", "amin")
        return (
            *(x.scatter_reduce(1, at, x.flip(0), one, include_self=own) for one in words for own in (True, False)),
            *(x.index_reduce(0, order, x.flip(1), one, include_self=own) for one in words[1:] for own in (True, False)),
            *(whole.scatter_reduce(1, at, whole.flip(0), one, include_self=False) for one in ("sum", "amax", "amin")),
            x.scatter(1, at, x.flip(0), reduce="add"),
            x.scatter(1, at, 2.0, reduce="multiply"),
        )

    exported(compute, torch.randn(8, 16), torch.randint(-9, 9, (8, 16)))


def test_order_distance_and_products() -> None:
    def compute(x: Any, y: Any) -> Results:
        ascending = x.sort(-1).values
        return (
            *(torch.cdist(x[:3], x[3:], p) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))),
            *x.kthvalue(3, -1),
            *x.median(0, keepdim=True),
            *x.median(1),
            torch.searchsorted(ascending, y),
            torch.searchsorted(ascending, ascending, right=True),
            torch.searchsorted(ascending[0], y, out_int32=True),
            x.cumprod(-1),
        )

    exported(compute, torch.randn(8, 16), torch.randn(8, 5))
