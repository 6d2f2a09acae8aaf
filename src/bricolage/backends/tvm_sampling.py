"""Schedules whose choices MetaSchedule's rules draw at random."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.target import Target
    from tvm.tirx import PrimFunc

from bricolage.backends.tvm_schedule import LONGEST_VECTOR

_INTRINSICS = "tvm.s_tir.tensor_intrin"


def sample_schedule(function: PrimFunc, target: Target, threads: int, seed: int) -> Schedule | None:
    """A program scheduled by MetaSchedule's rules for processors, their choices drawn with `seed`; None where what was drawn
    does not hold."""
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.meta_schedule import postproc, schedule_rule, space_generator

    rules = [
        schedule_rule.InlineConstantScalars(),
        schedule_rule.AutoInline(False, True, True, True, True, True),
        schedule_rule.AddRFactor(max_jobs_per_core=16, max_innermost_factor=64),
        schedule_rule.MultiLevelTiling(
            "SSRSRS",
            max_innermost_factor=64,
            reuse_write=schedule_rule.ReuseType(req="may", levels=[1, 2], scope="global"),
        ),
        schedule_rule.ParallelizeVectorizeUnroll(
            max_jobs_per_core=16 if threads > 1 else -1,
            max_vectorize_extent=LONGEST_VECTOR,
            unroll_max_steps=[0, 16, 64],
        ),
        schedule_rule.RandomComputeLocation(),
    ]
    checks = [
        postproc.DisallowDynamicLoop(),
        postproc.RewriteParallelVectorizeUnroll(),
        postproc.RewriteReductionBlock(),
    ]
    space = space_generator.PostOrderApply(sch_rules=rules, postprocs=checks, mutator_probs={})
    with _without_intrinsics():
        context = meta_schedule.TuneContext(
            function, target=target, space_generator=space, rand_state=seed, num_threads=1
        )
    designs = context.generate_design_space()
    drawn = designs[seed % len(designs)]
    return drawn if all(check.apply(drawn) for check in checks) else None


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """A context imports TVM's descriptions of the instructions of all processors, which takes a quarter of a minute; the rules
    here use none of them."""
    missing = _INTRINSICS not in sys.modules
    if missing:
        sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        if missing:
            del sys.modules[_INTRINSICS]
