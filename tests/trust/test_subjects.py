"""Which programs are looked into, and what their lists of changes hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, RegionModel, Resources
from bricolage.backends.reference import REFERENCE
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.rewrite.engine.retrace import Finished, Fixpoint
from bricolage.rewrite.variants import REWRITTEN, rewritten_variants
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.changes import fused_kernels
from bricolage.trust.subjects import of_backends, plan_subject
from bricolage.work.implementation import Implementation, KernelConfig
from tests.plan.bucket_facts import alter_bucket
from tests.runtime import made_plans
from tests.trust.test_bisect import layers, whole


def test_the_reference_is_a_backend_that_nobody_is_offered() -> None:
    assert "reference" not in registry.names()
    assert "reference" not in [backend.name for backend in registry.available()]
    assert registry.version("reference") and not list(registry.get("reference").claims())


def test_the_reference_rounds_to_the_types_of_the_model(tmp_path: Path) -> None:
    made, store = layers(), Store(tmp_path)
    store.share([made.model])
    path = store.region(made.everything, Identities(made).key(made.everything))
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    (y,) = registry.get("reference").compile(RegionModel(path), KernelConfig(), Resources()).run([x])
    assert isinstance(y, np.ndarray) and y.dtype == np.float32 and y.shape == (4, 8)


def test_a_model_on_each_backend_as_it_came_and_rewritten() -> None:
    made = layers()
    backends = [registry.get("sound"), registry.get("crooked")]
    found = list(of_backends(made, backends, Options(threads=1), host()))
    assert [one.name for one in found] == ["sound f32", "sound f32 rewritten", "crooked f32", "crooked f32 rewritten"]
    assert len(list(of_backends(made, backends, Options(threads=1, rewrite=False), host()))) == 2


def test_what_is_not_claimed_the_reference_runs() -> None:
    made, backend = layers(), registry.get("native")
    if not isinstance(backend.status(), Available):
        pytest.skip("there is no C compiler")
    tanh = next(operator for operator in made.operators if operator.op_type == "Tanh")
    tanh.node.domain = "elsewhere"
    found, *_ = of_backends(made, [backend], Options(threads=1, rewrite=False), host())
    assert [one.implementation.backend for one in found.placement] == ["native", "reference", "native"]
    assert found.placement[1].implementation == REFERENCE and found.placement[1].region == 1 << tanh.number


def test_a_plan_of_a_rewritten_graph(tmp_path: Path) -> None:
    made = layers()
    (variant,) = rewritten_variants(made)
    placement = whole(variant.graph, "sound")
    bucket = made_plans.made_bucket(tmp_path, variant.graph, placement, {}, variant=REWRITTEN)
    keyed = Identities(variant.graph).key(variant.graph.everything)
    bucket = alter_bucket(bucket, regions=(dataclasses.replace(bucket.program.regions[0], key=keyed),))
    found = plan_subject(bucket, made, variant.graph)
    assert isinstance(found.retrace, Fixpoint) and found.placement == placement
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store")
    store.share([made.model])
    program = SubjectProgram(found, store, Resources(1))
    assert [change.kind for change in program.changes] == ["rewrite"] * sum(variant.rules.values()) + ["region"]
    other = alter_bucket(bucket, operators=bucket.program.operators + 1)  # as rules of another version made it
    assert isinstance(plan_subject(other, made, variant.graph).retrace, Finished)


def test_kernels_of_native_can_be_taken_apart(tmp_path: Path) -> None:
    native = registry.get("native")
    if not isinstance(native.status(), Available):
        pytest.skip("there is no C compiler")
    made, store = layers(), Store(tmp_path)
    store.share([made.model])
    region = RegionModel(store.region(made.everything, Identities(made).key(made.everything)))
    several = [
        number
        for number, kernel in enumerate(fused_kernels(region, Implementation("native"), Resources(1)))
        if len(kernel.operators) > 1
    ]
    assert several
    apart = native.fusing(KernelConfig(), ())
    shown = native.kernel_report(region, apart, Resources(1), timed=False)
    assert shown is not None and all(len(kernel.operators) == 1 for kernel in shown.kernels)
    one = native.kernel_report(region, native.fusing(KernelConfig(), several[:1]), Resources(1), timed=False)
    assert one is not None and len([kernel for kernel in one.kernels if len(kernel.operators) > 1]) == 1
    with pytest.raises(Refused, match="kernels"):
        native.kernel_report(region, native.fusing(KernelConfig(), [999]), Resources(1), timed=False)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    answers = [native.compile(region, config, Resources(1)).run([x])[0] for config in (KernelConfig(), apart)]
    np.testing.assert_allclose(np.asarray(answers[0]), np.asarray(answers[1]), rtol=1e-4, atol=1e-6)


def test_backends_without_kernels_to_show_have_none() -> None:
    assert fused_kernels(RegionModel(Path("absent.onnx")), Implementation("sound"), Resources(1)) == ()
