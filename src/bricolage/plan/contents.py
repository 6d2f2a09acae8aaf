"""What an unpacked artifact must fulfil before anything of it is compiled. Kernels are bound to memory that is allocated by what
the plan and the graphs say of shapes, so these must say the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from bricolage.errors import BricolageError
from bricolage.frontends import normal_form
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import interface
from bricolage.plan.constant_inputs import words_of
from bricolage.plan.plan import Bucket, Plan, TensorSpec
from bricolage.plan.planned_interface import default_specs, input_specs, output_specs
from bricolage.plan.program_step import MODEL_FILE, USER_FILE


class WrongContents(Exception):
    """A part of an artifact is damaged, or two do not fit together."""


def check_contents(plan: Plan, folder: Path, files: Collection[str]) -> None:
    """Looks at the model and the graph of every bucket, in `folder` with just these `files`.

    Raises:
        WrongContents: saying what is wrong, and where.
    """
    name = MODEL_FILE
    try:
        model = normal_form.read_normal_form(folder / MODEL_FILE, whole=True)
        _compare("inputs", plan.inputs, input_specs(model))
        _compare("inputs with a default", plan.defaults, default_specs(model))
        _compare("outputs", plan.outputs, output_specs(model))
        values = interface(model).defaults
        for constant in plan.constants:
            if words_of(np.asarray(values[constant.name].numpy())) != constant.value:
                raise WrongContents(f"its input '{constant.name}' is constant with another value than the plan says")
        for bucket in plan.buckets:
            name = bucket.program.graph
            if name not in files:
                raise WrongContents("it is missing")
            _check_graph(plan, bucket, folder)
            if hands_file_through(bucket):
                name = USER_FILE
                if name not in files:
                    raise WrongContents("it is missing")
                _check_file(plan, bucket, folder)
    except WrongContents as error:
        raise WrongContents(f"{name}: {error}") from error
    except BricolageError as error:
        raise WrongContents(f"{name}: {error.sentence}") from error
    except Exception as error:  # what reads models assumes valid ones, and meets others with whatever comes
        raise WrongContents(f"{name}: it is damaged ({type(error).__name__})") from error


def hands_file_through(bucket: Bucket) -> bool:
    """Whether the user's own file is what runs."""
    return any(region.implementation.config.as_it_comes for region in bucket.program.regions)


def _check_file(plan: Plan, bucket: Bucket, folder: Path) -> None:
    """The user's file takes what the plan's model takes, and returns as much; its sizes are its own."""
    if len(bucket.program.regions) != 1:
        raise WrongContents("it is one of several regions")
    model = normal_form.read_as_it_comes(folder / USER_FILE)
    input_names = {value.name for value in model.graph.inputs}
    if missing := [spec.name for spec in plan.inputs if spec.name not in input_names]:
        raise WrongContents(f"it has no input '{missing[0]}'")
    if len(model.graph.outputs) != len(plan.outputs):
        raise WrongContents(f"it has {len(model.graph.outputs)} outputs, not {len(plan.outputs)}")


def _check_graph(plan: Plan, bucket: Bucket, folder: Path) -> None:
    model = normal_form.read_normal_form(folder / bucket.program.graph)
    graph = Graph(model)
    if len(graph) != bucket.program.operators:
        raise WrongContents(f"it has {len(graph)} operators, not {bucket.program.operators}")
    inputs, outputs = input_specs(model), output_specs(model)
    expected_specs = {spec.name: spec for spec in plan.inputs}
    for spec in plan.defaults:
        if spec.name in bucket.program.overridden:
            expected_specs[spec.name] = TensorSpec(spec.name, spec.dtype, tuple(bucket.program.overridden[spec.name]))
    if any(name not in {spec.name for spec in inputs} for name in bucket.program.overridden):
        raise WrongContents("it does not take an input that the plan says it does")
    if any(spec.name not in expected_specs for spec in inputs):
        raise WrongContents("it has inputs that the plan does not name")
    _compare("inputs", [_bind_spec(expected_specs[spec.name], bucket.program.sizes, spec) for spec in inputs], inputs)
    if len(outputs) != len(plan.outputs):
        raise WrongContents(f"it has {len(outputs)} outputs, not {len(plan.outputs)}")
    pairs = zip(plan.outputs, outputs, strict=True)
    _compare(
        "outputs", [_bind_output_spec(spec, bucket.program.sizes, graph_spec) for spec, graph_spec in pairs], outputs
    )


def _bind_output_spec(spec: TensorSpec, sizes: Mapping[str, int], graph: TensorSpec) -> TensorSpec:
    """As `_bound`, of an output: inside, it may have a name of its own, and sizes that only a run tells."""
    bound = _bind_spec(spec, sizes, graph)
    if graph.shape is None or bound.shape is None:
        return TensorSpec(graph.name, spec.dtype, graph.shape, graph.keys)
    pairs = zip(bound.shape, graph.shape, strict=True)
    shape = tuple(size if isinstance(graph_size, int) else graph_size for size, graph_size in pairs)
    return TensorSpec(graph.name, spec.dtype, shape, graph.keys)


def _bind_spec(spec: TensorSpec, sizes: Mapping[str, int], graph: TensorSpec) -> TensorSpec:
    """What the graph of a bucket should say of a tensor. Sizes that the plan does not know are the graph's own."""
    if spec.shape is None or graph.shape is None or len(spec.shape) != len(graph.shape):
        return TensorSpec(spec.name, spec.dtype, graph.shape if spec.shape is None else spec.shape, graph.keys)
    pairs = zip(spec.shape, graph.shape, strict=True)
    shape = tuple(size if isinstance(size, int) else sizes.get(size, graph_size) for size, graph_size in pairs)
    return TensorSpec(spec.name, spec.dtype, shape, graph.keys)


def _compare(what: str, planned: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> None:
    if tuple(planned) != tuple(found):
        raise WrongContents(f"its {what} are not those of the plan")
