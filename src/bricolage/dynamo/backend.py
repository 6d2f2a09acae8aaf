"""What `torch.compile` calls: which graphs are bricolage's, and which are left to PyTorch, with the reason."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from bricolage.base.options import Options
from bricolage.dynamo.compiled import CompiledGraph
from bricolage.dynamo.graph_arguments import arguments_of
from bricolage.dynamo.report import GraphReport
from bricolage.errors import BadOption, LeftToPyTorch

_MODES: Mapping[str, str] = {"reduce-overhead": "quick", "max-autotune": "full", "max-autotune-no-cudagraphs": "full"}
"""Words of `torch.compile` for how much to try, and ours."""
_made: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def compile_graph(
    module: torch.fx.GraphModule,
    examples: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Callable[..., Any]:
    """A function that computes what `module` does. Its first call decides, with the inputs of that call: it takes what
    `bricolage.optimize` takes. It is PyTorch's eager where gradients are wanted, and where bricolage refuses the graph or
    is not faster; `graphs` says why, and so does a warning.

    Args:
        module: a graph of TorchDynamo's, not lowered any further.
        examples: its arguments.
        mode: of `torch.compile`: "max-autotune" is the effort "full".
        options: fields of `bricolage.Options`, as those in `more`; and "replan" and "provisional", as for `optimize`.

    Raises:
        BadOption: there is no such option, or its value is bad.
    """
    words = {**(options or {}), **more}
    replan, provisional = bool(words.pop("replan", False)), bool(words.pop("provisional", False))
    compiled_graph = CompiledGraph(module, _options(mode, words), replan=replan, provisional=provisional)
    _made.add(compiled_graph)
    try:
        wanted = [example for example in examples if isinstance(example, torch.Tensor) and example.requires_grad]
        if torch.is_grad_enabled() and wanted:
            many = f"{len(wanted)} tensors" if len(wanted) > 1 else "a tensor"
            raise LeftToPyTorch(reason=f"gradients of {many} are wanted; call it under torch.inference_mode()")
        compiled_graph.arguments = arguments_of(module, examples)
    except LeftToPyTorch as error:
        compiled_graph.leave(str(error.facts["reason"]))
    return compiled_graph


def graphs() -> tuple[GraphReport, ...]:
    """What became of the graphs that `torch.compile` handed over in this process and that are still there, in their order."""
    return tuple(
        compiled_graph.report for compiled_graph in sorted(_made, key=lambda compiled_graph: compiled_graph.number)
    )


def _options(mode: str | None, given: Mapping[str, Any]) -> Options:
    words = dict(given)
    if mode not in (None, "default"):
        if mode not in _MODES:
            raise BadOption(option="mode", value=mode, advice=f"Use default, {', '.join(_MODES)}")
        words.setdefault("effort", _MODES[mode])
    option_names = [field.name for field in fields(Options) if field.name != "accuracy"]  # which needs samples
    for name in words:
        if name not in option_names:
            raise BadOption(
                option="options", value=name, advice=f"There are {', '.join([*option_names, 'replan', 'provisional'])}"
            )
    chosen = Options(**words)
    if chosen.objective != "latency":
        raise BadOption(option="objective", value=chosen.objective, advice="A call of a compiled module is one request")
    chosen.check_here()
    return chosen
