"""Inputs with a default, and outputs that nothing computes or that are one, through plan, artifact and call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bricolage.base.options import Options
from bricolage.device.buffers import allocate_aligned
from bricolage.driver.sources import GivenModel, open_source
from bricolage.errors import UnknownInput, WrongShape
from bricolage.plan import artifact
from bricolage.plan.plan import Plan
from bricolage.plan.planned_interface import default_specs, input_specs, output_specs
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import load
from bricolage.work.implementation import Implementation, KernelConfig
from tests.plan.bucket_facts import alter_bucket
from tests.runtime.made_plans import made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")
QUICK = Implementation("quick", KernelConfig("f32"))
X, K = np.float32([1, 2, 3, 4]), np.float32([2, 3, 4, 5])
TEXT = """<ir_version: 8, opset_import: ["" : 18]>
made (float[1] k, float[n] x, float[d] b) => (float[n] y, float[n] x, float[n] y, float[1] k, float[1] w)
{ a = Mul(x, k)  c = Add(a, b)  y = Add(c, w) }"""


def planned(folder: Path, **given: np.ndarray) -> Plan:
    """A plan for y = x · k + b + w, where k is 1 and b is 0 unless they are given, and w is 10."""
    proto = onnx.parser.parse_model(TEXT)
    for name, number in (("k", 1.0), ("b", 0.0), ("w", 10.0)):
        proto.graph.initializer.append(numpy_helper.from_array(np.float32([number]), name))
    folder.mkdir()
    opened = open_source(GivenModel(proto, inputs={"x": X, **given}), Options(threads=1), folder)
    (one,) = opened.buckets
    model = (folder / artifact.MODEL).read_bytes()
    bucket = made_bucket(folder, one.graph, whole(one.graph, QUICK), one.sizes)
    plan = made_plan(folder, alter_bucket(bucket, overridden=dict(one.overridden)))
    (folder / artifact.MODEL).write_bytes(model)
    ends = {"inputs": input_specs(opened.model), "outputs": output_specs(opened.model)}
    return replace(plan, **ends, defaults=default_specs(opened.model))


@pytest.mark.parametrize("given", [{}, {"k": np.float32([7])}], ids=["as weights", "one as an input"])
def test_defaults_may_be_overridden_or_not(tmp_path: Path, given: dict[str, np.ndarray]) -> None:
    plan = planned(tmp_path / "run", **given)
    artifact.save(plan, tmp_path / "run", tmp_path / "made.bricolage")
    run = load(tmp_path / "made.bricolage")
    assert [one.name for one in run.inputs] == ["x"]
    assert [one.name for one in run.defaults] == ["k", "b"]
    for k, b in ((1.0, [0.0]), (3.0, [0.0]), (1.0, [1, 2, 3, 4]), (-2.0, [5.0]), (1.0, [0.0])):
        own = {"k": np.float32([k])} if k != 1 else {}
        own |= {"b": np.float32(b)} if b != [0.0] else {}
        y = X * np.float32(k) + np.float32(b) + 10
        found = run({"x": X, **own})
        for value, wanted in zip(found, (y, X, y, np.float32([k]), np.float32([10])), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-6)
        assert set(run.run({"x": X, **own})) == {"y", "x", "k", "w"}
    np.testing.assert_allclose(run(X, k=np.float32([4]))[0], X * 4 + 10, rtol=1e-6)
    assert len(run.submit(X).result(60)) == 5
    run.close()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = Executable(planned(tmp_path / "run"), tmp_path / "run")
    with pytest.raises(WrongShape, match="'k'"):
        run(X, k=K)
    with pytest.raises(UnknownInput, match="optional: k"):
        run(X, w=K)


def test_buffers_of_the_caller(tmp_path: Path) -> None:
    run = Executable(planned(tmp_path / "run"), tmp_path / "run")
    x, k, out = (allocate_aligned((n,), np.dtype(np.float32)) for n in (4, 1, 4))
    x[:], k[:] = X, 2
    bound = run.bind({"x": x, "k": k}, {"x": out})
    bound()
    np.testing.assert_array_equal(out, X)
    np.testing.assert_allclose(bound.outputs["y"], X * 2 + 10)
    assert set(bound.outputs) == {"y", "x", "k", "w"}
