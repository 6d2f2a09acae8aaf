"""`tailor`: a model in, an equal model out that one backend runs fastest, by timing variants of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.rewrites.model_rewriting import combine_rules
from bricolage.driver.rewrites.tailoring import tailor_model
from bricolage.driver.rewrites.verified_rewrite import Rewritten
from bricolage.errors import BadOption
from bricolage.frontends import to_model
from bricolage.rewrite.rule import Rule


def tailor(
    source: Any,
    backend: str,
    options: Options | None = None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    opset: int | None = None,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    own: Sequence[Rule] = (),
    progress: Progress | None = None,
) -> Rewritten:
    """The variant of a model that one backend runs fastest on this machine: rules, cost-based ones too, are taken or left by what
    they do to the measured time of the whole model (see `bricolage.tune.rewrites`).

    Args:
        source, only, skip, example_inputs, own: as for `rewrite`.
        opset: to which the model is raised; by default newer ones are tried, too.
        backend: name of the backend, alone.
        options: threads, budget, precision, one size for each symbolic dimension; the model keeps these open.
        inputs: real inputs by name; by default they are generated.

    Raises:
        MissingBackend, UnknownBackend, NoBackend: the backend is not there, or does not run the model.
        NotAccurate: its answer is not accurate enough.
        UnboundDimension: a dimension has no size.
        BadOption: a dimension has several.
        WrongRewrite: the answer changed; variants are made in no one order, so all rules are named.
        and as `rewrite`.
    """
    options, progress = options or Options(), progress or Silent()
    options.check_here()
    for name, several in options.shapes.items():
        if len(several) > 1:
            raise BadOption(option="--shape", value=f"{name}={several}", advice="Give one size to measure with")
    rules = combine_rules(only, skip, own)
    original = to_model(source, example_inputs=example_inputs)
    return tailor_model(original, backend, options, rules, progress, inputs=inputs, opset=opset)
