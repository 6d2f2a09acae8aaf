"""The main job on small models with real backends."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import bricolage
from bricolage.backends import registry
from bricolage.base.codec import encode
from bricolage.base.options import Options
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.driver import items, mixture_items
from bricolage.driver.bucket_decision import decision_key
from bricolage.driver.sources import GivenModel, open_source
from bricolage.errors import (
    BadOption,
    ForeignArtifact,
    MissingInput,
    UnboundDimension,
    UnknownBackend,
    UnknownInput,
    WrongShape,
    WrongType,
)
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import Implementation
from tests.graph.models import parse
from tests.plan.bucket_facts import alter_bucket

QUICK = {"backends": ("onnxruntime", "openvino"), "budget_s": 12.0, "threads": 1}
INSTANT = {**QUICK, "backends": ("onnxruntime",), "effort": "instant"}
"""For what is asked of the answer alone."""
BRIEF = Options(backends=("native",), budget_s=1.0, threads=1)
NET = """<ir_version: 8, opset_import: ["" : 18]> net (float[batch,16,16,16] x) => (float[batch,10] y, float[batch,32,16,16] r) {
    c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p) y = Gemm<transB=1>(f, v, u) }"""


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w": (32, 16, 3, 3), "b": (32,), "v": (10, 32), "u": (10,)}
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    w, b, v, u = (torch.from_numpy(array) for array in weights().values())
    r = torch.conv2d(torch.from_numpy(x), w, b, padding=1).relu()
    return (r.mean((2, 3)) @ v.T + u).numpy(), r.numpy()


def sample(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, 16, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def fast(cache: None) -> Executable:
    return bricolage.optimize(parse(NET, **weights()), Options(shapes={"batch": (1, 4)}, **QUICK))


@pytest.mark.parametrize("batch", [1, 4])
def test_numpy_in_numpy_out(fast: Executable, batch: int) -> None:
    for seed in range(3):
        x = sample(batch, seed)
        for actual, wanted in zip(fast(x), expected(x), strict=True):
            assert isinstance(actual, np.ndarray)
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


def test_workers_may_stay_for_the_next_model(cache: None) -> None:
    with Pool() as pool:
        for factor in (1.0, 2.0):
            changed = {name: (factor * array).astype(np.float32) for name, array in weights().items()}
            options = Options(shapes={"batch": (1,)}, **{**INSTANT, "effort": "quick"})
            made = bricolage.optimize(parse(NET, **changed), options, pool=pool)
            single = bricolage.optimize(parse(NET, **changed), options)
            x = sample(1)
            np.testing.assert_array_equal(made(x)[1], single(x)[1])
        kept = pool.worker(Regime(("onnxruntime",), 1, True, host()))
        assert kept.loads > 1


def test_results_outlive_the_next_call(fast: Executable) -> None:
    first = fast(sample(1, 1))[0]
    kept = first.copy()
    fast(sample(1, 2))
    np.testing.assert_array_equal(first, kept)


def test_torch_in_torch_out(fast: Executable) -> None:
    import torch

    y, r = fast(x=torch.from_numpy(sample(1)))
    assert isinstance(y, torch.Tensor) and isinstance(r, torch.Tensor)
    np.testing.assert_allclose(y.numpy(), expected(sample(1))[0], rtol=1e-4, atol=1e-5)


def test_outputs_by_name(fast: Executable) -> None:
    assert set(fast.run({"x": sample(1)})) == {"y", "r"}


def test_a_shape_that_was_never_planned_runs(fast: Executable) -> None:
    x = sample(3)
    np.testing.assert_allclose(fast(x)[0], expected(x)[0], rtol=1e-4, atol=1e-5)


def test_bound_buffers_are_used_in_place(fast: Executable) -> None:
    x = allocate_aligned((4, 16, 16, 16), np.dtype("float32"))
    y = allocate_aligned((4, 10), np.dtype("float32"))
    run = fast.bind({"x": x}, {"y": y})
    for seed in range(2):
        x[:] = sample(4, seed)
        run()
        np.testing.assert_allclose(y, expected(sample(4, seed))[0], rtol=1e-4, atol=1e-5)
    assert run.outputs["y"] is y


def test_threads_take_turns(fast: Executable) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = sample(1, seed)
        wanted = expected(x)[0]
        results = [fast(x)[0] for _ in range(20)]
        wrong.extend(seed for result in results if not np.allclose(result, wanted, rtol=1e-4, atol=1e-5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("arguments", "named", "error"),
    [
        ((), {}, MissingInput),
        ((sample(1), sample(1)), {}, UnknownInput),
        ((), {"z": sample(1)}, UnknownInput),
        ((sample(1).astype(np.float64),), {}, WrongType),
        ((sample(1)[0],), {}, WrongShape),
        ((sample(1)[:, :8],), {}, WrongShape),
    ],
)
def test_inputs_that_do_not_fit(
    fast: Executable, arguments: tuple[np.ndarray, ...], named: dict[str, np.ndarray], error: type[Exception]
) -> None:
    with pytest.raises(error):
        fast(*arguments, **named)


def test_an_artifact_gives_the_same(fast: Executable, tmp_path: Path) -> None:
    loaded = bricolage.load(fast.save(tmp_path / "net.bricolage"))
    assert loaded.plan == fast.plan
    for batch in (1, 2, 4):
        np.testing.assert_array_equal(loaded(sample(batch))[0], fast(sample(batch))[0])


def test_a_known_decision_is_the_same_plan(fast: Executable) -> None:
    again = bricolage.optimize(parse(NET, **weights()), Options(shapes={"batch": (1, 4)}, **QUICK))
    assert [encode(bucket) for bucket in again.plan.buckets] == [encode(bucket) for bucket in fast.plan.buckets]


def test_replanning_reuses_costs_and_stays_right(fast: Executable, tmp_path: Path) -> None:
    artifact = fast.save(tmp_path / "net.bricolage")
    again = bricolage.optimize(artifact, Options(shapes={"batch": (1,)}, **QUICK), replan=True)
    np.testing.assert_allclose(again(sample(1))[0], expected(sample(1))[0], rtol=1e-4, atol=1e-5)


def test_an_artifact_from_elsewhere_is_refused_politely(fast: Executable, tmp_path: Path) -> None:
    provenance = dataclasses.replace(fast.plan.provenance, fingerprint="0123456789ab", hardware="another machine")
    foreign = Executable(dataclasses.replace(fast.plan, provenance=provenance), fast._source.directory)
    artifact = foreign.save(tmp_path / "foreign.bricolage")
    with pytest.raises(ForeignArtifact, match="another machine"):
        bricolage.load(artifact)
    x = sample(1)
    np.testing.assert_allclose(bricolage.load(artifact, any_machine=True)(x)[0], expected(x)[0], rtol=1e-4, atol=1e-5)


def test_a_plan_for_missing_backends_runs_on_what_is_there(fast: Executable, tmp_path: Path) -> None:
    regions = tuple(
        dataclasses.replace(r, implementation=Implementation("gone")) for r in fast.plan.buckets[0].program.regions
    )
    buckets = tuple(alter_bucket(b, regions=regions) for b in fast.plan.buckets[:1])
    foreign = Executable(dataclasses.replace(fast.plan, buckets=buckets), fast._source.directory)
    artifact = foreign.save(tmp_path / "gone.bricolage")
    with pytest.raises(ForeignArtifact, match="gone is not installed"):
        bricolage.load(artifact)
    x = sample(1)
    np.testing.assert_allclose(bricolage.load(artifact, any_machine=True)(x)[0], expected(x)[0], rtol=1e-4, atol=1e-5)


def test_users_inputs_are_checked() -> None:
    model = parse(NET, **weights())
    with pytest.raises(WrongType):
        bricolage.optimize(model, Options(**QUICK), inputs={"x": sample(1).astype(np.float64)})


def test_a_batch_without_a_size_takes_one(caplog: pytest.LogCaptureFixture) -> None:
    fast = bricolage.optimize(parse(NET, **weights()), BRIEF)
    assert [bucket.program.sizes for bucket in fast.plan.buckets] == [{"batch": 1}]
    assert "the batch 'batch' takes 1" in caplog.text


def test_open_dimensions_are_asked_for_at_once() -> None:
    open_net = NET.replace("16,16,16]", "16,high,wide]")
    with pytest.raises(UnboundDimension, match="--shape high=224 --shape wide=224"):
        bricolage.optimize(parse(open_net, **weights()), BRIEF)
    fast = bricolage.optimize(parse(open_net, **weights()), BRIEF, shapes={"high": 16, "wide": [16]})
    assert [bucket.program.sizes for bucket in fast.plan.buckets] == [{"batch": 1, "high": 16, "wide": 16}]


def test_unknown_words_are_refused() -> None:
    with pytest.raises(UnknownBackend, match="onnxruntime"):
        bricolage.optimize(parse(NET, **weights()), Options(backends=("fastest",)))
    with pytest.raises(BadOption):
        bricolage.optimize(42)


CONTROL = """<ir_version: 8, opset_import: ["" : 18]> control (float[4] x, bool c) => (float[4] y) {
    a = Relu(x)
    y = If(c) <then_branch = t () => (float[4] p) { p = Add(a, x) }, else_branch = e () => (float[4] q) { q = Neg(a) }> }"""
DYNAMIC = """<ir_version: 8, opset_import: ["" : 18]> dynamic (float[6] x) => (int64[1,n] y) {
    a = Relu(x) y = NonZero(a) }"""
HALF = """<ir_version: 8, opset_import: ["" : 18]> half (float16[8,8] x) => (float16[8,8] y) { a = MatMul(x, x) y = Tanh(a) }"""


def test_control_flow_runs() -> None:
    fast = bricolage.optimize(parse(CONTROL), Options(**INSTANT))
    x = np.array([-1, 2, -3, 4], np.float32)
    relu = np.maximum(x, 0)
    np.testing.assert_allclose(fast(x, np.array(True)), relu + x)
    np.testing.assert_allclose(fast(x, np.array(False)), -relu)


def test_shapes_that_depend_on_values_run() -> None:
    fast = bricolage.optimize(parse(DYNAMIC), Options(**INSTANT))
    np.testing.assert_array_equal(fast(np.array([0, 1, -1, 2, 0, 3], np.float32)), [[1, 3, 5]])
    np.testing.assert_array_equal(fast(np.zeros(6, np.float32)), np.empty((1, 0)))


def test_other_types_run() -> None:
    fast = bricolage.optimize(parse(HALF), Options(precision="medium", **INSTANT))
    x = (np.eye(8) / 2).astype(np.float16)
    np.testing.assert_allclose(fast(x), np.tanh(x @ x), rtol=2e-3)


def test_strings_run_or_are_refused_by_name() -> None:
    text = '<ir_version: 8, opset_import: ["" : 20]> words (string[2] x) => (string[2] y) { y = StringConcat(x, x) }'
    fast = bricolage.optimize(parse(text), Options(**INSTANT))
    assert fast(np.array(["a", "b"], dtype=object)).tolist() == ["aa", "bb"]


def test_a_torch_module_with_example_inputs() -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(2, 8)
    fast = bricolage.optimize(module, Options(**INSTANT), example_inputs=(x,))
    torch.testing.assert_close(fast(x), module(x).detach(), rtol=1e-4, atol=1e-5)
    assert module.training, "the caller's module is left as it was"
    assert fast.plan.buckets[0].verification.inputs_from == "example inputs", "they serve for measuring, too"


def test_a_new_option_makes_another_decision(tmp_path: Path) -> None:
    """The key of a decision derives from the fields of the options: one more field can not be forgotten."""

    @dataclasses.dataclass(frozen=True)
    class More(Options):
        colour: str = "red"

    options = Options(shapes={"batch": (1,)}, **QUICK)
    opened = open_source(GivenModel(parse(NET, **weights())), options, tmp_path)
    keys = {
        decision_key(opened, opened.buckets[0], chosen, [registry.get("onnxruntime")], host())
        for chosen in (
            options,
            More(shapes={"batch": (1,)}, **QUICK),
            More(shapes={"batch": (1,)}, colour="blue", **QUICK),
            dataclasses.replace(options, isa="avx2"),
            dataclasses.replace(options, seed=1),
        )
    }
    assert len(keys) == 5
    same = dataclasses.replace(options, memory_limit_mb=4096, shapes={"batch": (1, 7)})
    assert decision_key(opened, opened.buckets[0], same, [registry.get("onnxruntime")], host()) in keys


def test_full_effort_tunes_what_does_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items.KernelsItem, "_seconds", lambda *_: 2.0)  # of so small a model
    monkeypatch.setattr(mixture_items.PrecisionsItem, "promise", lambda *_: None)  # which takes long on a busy machine
    monkeypatch.setattr(mixture_items.RegionsItem, "promise", lambda *_: None)
    options = Options(backends=("native",), shapes={"batch": (1,)}, effort="full", budget_s=120.0, threads=1)
    tuned = bricolage.optimize(parse(NET, **weights()), options)
    bucket = tuned.plan.buckets[0]
    tuning = next(one for one in bucket.record.agenda if one.name == "kernel tuning")
    assert tuning.outcome == "measured", "it searched; whether it finds anything is the machine's"
    assert all(c.accepted for c in bucket.race.contestants if " tuned " in c.name)
    for actual, wanted in zip(tuned(sample(1)), expected(sample(1)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


ODD = """<ir_version: 8, opset_import: ["" : 18]>
odd (float[n,4] x, float[4] k, int64[2] unread) => (float[1,m] y, float[n,4] x, float[1,m] y, float[4] w)
{ a = Mul(x, k) b = Add(a, w) s = Shape(b) t = Concat<axis=0>(s, one) y = Reshape(b, t) }"""


def test_an_odd_interface_outlives_optimize(tmp_path: Path) -> None:
    """A default, an input that nobody reads, outputs that are an input, a weight and twice the same, and one declared wrongly."""
    known = {"k": np.float32([1, 2, 3, 4]), "w": np.float32([5, 6, 7, 8]), "one": np.array([1])}
    x, unread = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, 0])
    options = Options(effort="instant", backends=("onnxruntime",), threads=1)
    given, path = {"x": x, "unread": unread}, tmp_path / "odd.bricolage"
    bricolage.optimize(parse(ODD, **known), options, inputs=given, output=path)
    run = bricolage.load(path)
    assert [spec.name for spec in run.inputs] == ["x", "unread"]
    assert [(spec.name, spec.shape) for spec in run.defaults] == [("k", (4,))]
    assert [spec.name for spec in run.outputs] == ["y", "x", "y", "w"]
    for rows in (x, x[:1], np.empty((0, 4), np.float32)):
        for k in (known["k"], np.float32([-1, 0, 1, 2])):
            found = run(rows, unread, **({} if k is known["k"] else {"k": k}))
            y = (rows * k + known["w"]).reshape(*rows.shape, 1)
            for value, wanted in zip(found, (y, rows, y, known["w"]), strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-6)
    bricolage.optimize(parse(ODD, **known), options, inputs=given, output=path)
    assert bricolage.load(path).plan.buckets == run.plan.buckets
