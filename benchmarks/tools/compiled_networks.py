"""Ten small networks as users hand them to `torch.compile`: what they return and how they index, rather than how large they are.

`NETWORKS` has them by name; each gives a module in eval mode and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Made: TypeAlias = "tuple[nn.Module, tuple[Tensor, ...]]"


class RecurrentDict(nn.Module):
    """Two LSTM layers, returned in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(128, 256, 2, batch_first=True)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[N, T, 128] to outputs and last states."""
        outputs, (last, _) = self.layers(x)
        return {"outputs": outputs, "last": last}


class BagOfWords(nn.Module):
    """Means of embeddings and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20_000, 128, mode="mean")
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 64))

    def forward(self, words: Tensor, begins: Tensor) -> Tensor:
        """Words [W] of all texts, and where each begins [N], to [N, 64]."""
        made: Tensor = self.layers(self.words(words, begins))
        return made


class Mixture(nn.Module):
    """Two of eight experts for each row, weighted by what a gate says."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(128, 8)
        self.up, self.down = (nn.Parameter(torch.randn(8, *shape) * 0.1) for shape in ((128, 256), (256, 128)))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 128] to the same."""
        scores, chosen = self.gate(x).topk(2, -1)
        weights = torch.zeros(len(x), 8).scatter_(1, chosen, scores.softmax(-1), reduce="add")
        inner = functional.gelu(torch.einsum("nd,edh->neh", x, self.up))
        made: Tensor = torch.einsum("neh,ehd,ne->nd", inner, self.down, weights)
        return made


class Spectrum(nn.Module):
    """A complex spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 512] to [N, 257], complex."""
        made: Tensor = torch.fft.rfft(self.layer(x))
        return made


class SmallLayers(nn.Module):
    """Three operators of a tenth of a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 256] to [N, 16]."""
        made: Tensor = self.layers(x)
        return made


class AttendedStates(nn.Module):
    """A GRU whose states are weighted by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.query, self.last = nn.GRU(64, 128, batch_first=True), nn.Linear(128, 1), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, 64] to scores [N, 10]."""
        states, _ = self.layers(x)
        weights = self.query(states).softmax(1)
        made: Tensor = self.last((weights * states).sum(1))
        return made


class Recommender(nn.Module):
    """Bags of categories and numbers, whose products are ranked."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(4))
        self.numbers = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32))
        self.last = nn.Sequential(nn.Linear(10 + 32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 13] and [4, N, L] to chances [N], and the best 8."""
        parts = [self.numbers(numbers), *(bag(one) for bag, one in zip(self.bags, categories, strict=True))]
        stacked = torch.stack(parts, 1)
        rows, columns = torch.triu_indices(5, 5, 1)
        crossed = torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns]
        chances = self.last(torch.cat([parts[0], crossed], 1)).squeeze(1).sigmoid()
        return chances, chances.topk(8).indices


class GraphLayers(nn.Module):
    """Messages along edges, added up at nodes, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 16)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """[N, 64] and edges [2, E] to [N, 16]."""
        for layer in (self.first, self.second):
            sent = layer(nodes).relu()
            nodes = torch.zeros_like(sent).index_add(0, edges[1], sent[edges[0]])
        return nodes


class Detector(nn.Module):
    """A few convolutions, and the boxes of the best 20 places."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
        self.scores, self.boxes = nn.Conv2d(64, 1, 1), nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[N, 3, H, W] to scores [N, 20] and boxes [N, 20, 4]."""
        found = self.layers(x)
        best, places = self.scores(found).flatten(1).topk(20)
        boxes = self.boxes(found).flatten(2).transpose(1, 2)
        return {"scores": best.sigmoid(), "boxes": boxes.gather(1, places.unsqueeze(-1).expand(-1, -1, 4))}


class Broken(nn.Module):
    """Two graphs, with a number that is looked at between them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Sequential(nn.Linear(256, 1024), nn.GELU()), nn.Linear(1024, 256)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 256] to the same."""
        inner = self.before(x)
        made: Tensor = self.after(inner if float(inner.mean()) < 1e3 else inner * 0.5) + x
        return made


def _random(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in shapes)


def _network(kind: Callable[[], nn.Module], inputs: Callable[[], tuple[Any, ...]]) -> Callable[[], Made]:
    def make() -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return kind().eval(), inputs()

    return make


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "recurrent-dict": _network(RecurrentDict, lambda: _random((4, 32, 128))),
    "bag-of-words": _network(BagOfWords, lambda: (torch.randint(20_000, (1280,)), torch.arange(0, 1280, 10))),
    "mixture": _network(Mixture, lambda: _random((64, 128))),
    "spectrum": _network(Spectrum, lambda: _random((64, 512))),
    "small-layers": _network(SmallLayers, lambda: _random((64, 256))),
    "attended-states": _network(AttendedStates, lambda: _random((4, 32, 64))),
    "recommender": _network(Recommender, lambda: (*_random((128, 13)), torch.randint(1000, (4, 128, 5)))),
    "graph-layers": _network(GraphLayers, lambda: (*_random((500, 64)), torch.randint(500, (2, 4000)))),
    "detector": _network(Detector, lambda: _random((1, 3, 128, 128))),
    "broken": _network(Broken, lambda: _random((64, 256))),
}
