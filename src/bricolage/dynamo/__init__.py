"""bricolage as a compiler of TorchDynamo's graphs: `torch.compile(model, backend="bricolage")`.

    import bricolage.dynamo

    model = torch.compile(model, backend="bricolage", options={"precision": "high", "budget_s": 60})
    with torch.inference_mode():
        y = model(x)  # the first call decides
    print(*bricolage.dynamo.graphs(), sep="\n")

Installed with bricolage through the entry-point group `torch_dynamo_backends`; see docs/manual/torch-compile.md.
"""

from bricolage.dynamo.backend import compile_graph, graphs
from bricolage.dynamo.recurrent import keep_recurrent_layers
from bricolage.dynamo.report import GraphReport

__all__ = ["GraphReport", "compile_graph", "graphs"]

keep_recurrent_layers(compile_graph)
