"""`tailor`: the variant of a model that one backend runs fastest, on a real backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from bricolage.api.tailor import tailor
from bricolage.base.options import Options
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.errors import BadOption, MissingBackend, NoBackend, UnboundDimension, UnknownBackend, UnknownFamily
from bricolage.graph.extract import write_whole
from bricolage.measure.race_record import Race
from bricolage.plan.rewrite_steps import EnabledRule, RewriteConfig
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.rule import Example
from bricolage.tune.rewrites import RewriteTuner, judge_race

FRAMES = Example(
    "float[batch,4,1,8,8] x",
    "c = Conv<pads=[1,1,1,1,1,1]>(x, w) n = BatchNormalization(c, s, b, m, v) r = Relu(n)"
    " d = Conv<pads=[1,1,1,1,1,1]>(r, u) y = Relu(d)",
    {"w": (8, 4, 3, 3, 3), "u": (8, 8, 3, 3, 3), "s": (8,), "b": (8,), "m": (8,), "v": (8,)},
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))


def test_forms_race_and_the_chosen_one_is_equal_and_open(tmp_path: Path) -> None:
    options = Options(threads=1, budget_s=8.0, shapes={"batch": (1,)})
    found = tailor(FRAMES.model(), "onnxruntime", options)
    tailored = found.tailored
    assert tailored is not None and tailored.tried > 2, "several variants were made"
    assert {raced.name for raced in tailored.graph_variants} >= {"original", "rewritten"}
    assert all(raced.cost.ms for raced in tailored.graph_variants)
    assert (tailored.rewrite_config is None) == (tailored.chosen == "original")
    assert found.error <= found.bound and found.sizes == {"batch": 1}
    write_whole(found.model, tmp_path / "better.onnx")
    import onnxruntime as ort

    session = ort.InferenceSession(str(tmp_path / "better.onnx"), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((3, 4, 1, 8, 8)).astype(np.float32)
    before = ort.InferenceSession(onnx_bytes(tmp_path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    after = session.run(None, {"x": x})[0]  # a batch of another size than the one it was made for
    assert np.linalg.norm(after - before) <= 1e-5 * np.linalg.norm(before)


def onnx_bytes(folder: Path) -> bytes:
    write_whole(FRAMES.model(), folder / "source.onnx")
    return onnx.load(str(folder / "source.onnx")).SerializeToString()


@pytest.mark.slow
def test_newer_opsets_take_part_unless_one_is_asked_for() -> None:
    gelu = Example(
        "float[2,3] x",
        "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)",
        {"r": 2**0.5, "o": 1.0, "h": 0.5},
    )
    options = Options(threads=1, budget_s=6.0)
    free = tailor(gelu.model(), "onnxruntime", options, only=["activation"]).tailored
    fixed = tailor(gelu.model(), "onnxruntime", options, only=["activation"], opset=18).tailored
    assert free is not None and fixed is not None and free.tried > fixed.tried == 1


def test_only_what_is_allowed_takes_part() -> None:
    options = Options(threads=1, budget_s=4.0, shapes={"batch": (1,)})
    found = tailor(FRAMES.model(), "onnxruntime", options, only=["folding"])
    assert set(found.counts) <= {"batch-normalization-into-linear"}
    with pytest.raises(UnknownFamily):
        tailor(FRAMES.model(), "onnxruntime", options, skip=["no such"])


def test_what_is_refused() -> None:
    model = FRAMES.model()
    with pytest.raises(UnboundDimension, match="--shape points=SIZE"):
        tailor(Example("float[points,3] x", "y = Relu(x)").model(), "onnxruntime")
    with pytest.raises(BadOption, match="one size"):
        tailor(model, "onnxruntime", Options(shapes={"batch": (1, 2)}))
    with pytest.raises((UnknownBackend, MissingBackend)):
        tailor(model, "no such", Options(shapes={"batch": (1,)}))
    odd = Example("float[2,3] x", "y = NonZero(x)").model()
    with pytest.raises(NoBackend, match="native"):
        tailor(odd, "native", Options(threads=1, budget_s=5.0))


def ran(**times: float) -> Race:
    """A race of twelve equal rounds."""
    rounds = tuple({name: (ms,) for name, ms in times.items()} for _ in range(12))
    costs = {name: Cost("ok", Latency.of([ms] * 12)) for name, ms in times.items()}
    return Race(rounds, costs, dict.fromkeys(times, 1.0))


def test_the_original_stays_where_no_form_is_faster() -> None:
    name, found = judge_race(ran(original=1.0, rewritten=1.1, tailored=1.05))
    assert name == ORIGINAL and [one.name for one in found] == ["original", "tailored", "rewritten"]
    assert found[1].speedup is not None and found[1].speedup.value == pytest.approx(1 / 1.05)


def test_the_fastest_form_is_chosen() -> None:
    assert judge_race(ran(original=1.0, rewritten=0.9, tailored=0.8))[0] == "tailored"
    assert judge_race(ran(original=1.0, rewritten=1.0))[0] == "rewritten", "less to do at the same speed"
    assert judge_race(ran(original=1.0))[0] == ORIGINAL


def test_what_won_is_combined() -> None:
    best = RewriteConfig(frozenset({"a"}), (EnabledRule("e", frozenset({"p"})),))
    first = RewriteConfig(frozenset({"a", "b"}), (EnabledRule("e", frozenset({"p", "q"})),))
    second = RewriteConfig(frozenset({"a"}), (EnabledRule("e", frozenset({"p"})), EnabledRule("f")))
    assert RewriteTuner.together(best, [replace(best, opset=23), replace(best, opset=20)]).opset == 23
    both = RewriteTuner.together(best, [first, second])
    assert both == RewriteConfig(frozenset({"a", "b"}), (EnabledRule("e", frozenset({"p", "q"})), EnabledRule("f")))
    before = RewriteConfig(frozenset({"a"}), (EnabledRule("g"), EnabledRule("e", frozenset({"p"}))))
    assert [one.rule for one in RewriteTuner.together(best, [second, before]).enabled] == ["g", "e", "f"]
