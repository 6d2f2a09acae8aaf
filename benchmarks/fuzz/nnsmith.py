"""Models of NNSmith (Liu et al., ASPLOS 2023): PyTorch modules whose shapes an SMT solver found, exported to ONNX.

Nothing of ours has a say in what it generates. The package is needed for this campaign only: `pip install nnsmith==0.1.0`, or
`pip install --target FOLDER` with the folder on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import random
import warnings
from functools import cache
from typing import Any

import numpy as np

from benchmarks.fuzz.sources import NoSample, Sample
from benchmarks.fuzz.sources import sample as drawn
from bricolage.errors import BricolageError
from bricolage.frontends import to_model

_NODES = (3, 12)
_LIMIT_MS = 5_000


def missing() -> str | None:
    """Why there are no such models here; None where there are."""
    absent = [name for name in ("nnsmith", "z3", "torch") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)}: not installed" if absent else None


def sample(seed: int) -> Sample:
    """One model.

    Raises:
        NoSample: NNSmith is not installed, found no graph in its time, or PyTorch does not export what it found.
        NoReference: under no inputs is the answer finite.
    """
    if (reason := missing()) is not None:
        raise NoSample(reason)
    try:
        network, arguments = _network(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = to_model(network, example_inputs=arguments)
    except BricolageError as error:
        raise NoSample(f"NNSmith: {error}") from error
    except Exception as error:  # z3, NNSmith or PyTorch; the model is none yet
        raise NoSample(f"NNSmith: {type(error).__name__}: {error}") from error
    return drawn(seed, "NNSmith", model)


@cache
def _operators() -> tuple[Any, Any]:
    """NNSmith's model type for PyTorch, and its operators."""
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.materialize import Model
    from nnsmith.materialize.torch.symbolnet import SymbolNet

    SymbolNet.debug_numeric = _nothing
    kind = Model.init("torch", backend_target="cpu")
    operators = list(kind.operators())
    activate_ext(opset=operators, factory=None)
    return kind, operators


def _nothing(_self: Any, _tensors: Any) -> None:
    """In place of a method that looks at values, of which an export has none."""


def _network(seed: int) -> tuple[Any, tuple[Any, ...]]:
    import torch
    from nnsmith.graph_gen import model_gen

    kind, operators = _operators()
    chance = random.Random(seed)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - NNSmith draws from it
    random.seed(seed)
    made = model_gen(
        opset=operators, method="symbolic", seed=seed, max_nodes=chance.randint(*_NODES), timeout_ms=_LIMIT_MS
    )
    network = kind.from_gir(made.make_concrete()).torch_model.eval()
    arguments = tuple(
        torch.randn(like.shape).to(like.dtype.torch())
        if str(like.dtype.value).startswith("float")
        else torch.ones(like.shape, dtype=like.dtype.torch())
        for like in network.input_like.values()
    )
    return network, arguments
