"""Targets whose plans differ because their devices or limits do: instructions, bytes, memory, latency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import bricolage
from bricolage.api.pack import pack
from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.options import BOUNDS, Options
from bricolage.costs.database import Database
from bricolage.costs.models.roofline import added_ms, least_config_ms
from bricolage.device.device import DESCRIBED
from bricolage.device.host import host, unlimited
from bricolage.driver.packs.latency_limit import check_latency, shipped_error, tighter_words
from bricolage.driver.packs.pack_making import Packed
from bricolage.errors import BadOption, BadTargets, NoTarget, TargetMissed, UnservedTargets
from bricolage.graph.prepare import prepare
from bricolage.graph.work import workload
from bricolage.native.cpu.isa import described_instructions, find_emulator
from bricolage.plan.accuracy_record import QuantisedGraph
from bricolage.plan.pack import PackTarget, tree
from bricolage.plan.plan import Plan
from bricolage.plan.race_outcome import Contestant
from bricolage.work.cost import Estimate, Setting
from bricolage.work.implementation import Implementation, KernelConfig
from tests.graph.models import parse
from tests.plan.bucket_facts import alter_bucket

pytestmark = pytest.mark.usefixtures("light_reference")
NET = """<ir_version: 8, opset_import: ["" : 18]> net (float[16,64] x) => (float[16,48] y) {
    h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"""
OPTIONS = Options(backends=("native",), effort="instant", budget_s=6.0, threads=1)
PEAKS = {"gflops": 320.0, "gbytes": 20.0}
HERE, ROUGH = PackTarget("here", threads=1), PackTarget("rough", "low", 1)
PLAIN = PackTarget("plain", threads=1, latency_ms=1e6)
AMX = PackTarget("amx", threads=1, isa="amx", **PEAKS)


def net() -> ir.Model:
    rng = np.random.default_rng(0)
    return parse(
        NET, w=rng.normal(0, 0.2, (64, 96)).astype(np.float32), v=rng.normal(0, 0.2, (96, 48)).astype(np.float32)
    )


def samples() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(8, 16, 64)).astype(np.float32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("differing")
        patch.setenv("BRICOLAGE_CACHE", str(path / "cache"))
        yield path


@pytest.fixture(scope="module")
def packed(folder: Path) -> Packed:
    if not isinstance(registry.find_status("native"), Available):
        pytest.skip("no C compiler")
    if not find_emulator("amx") or described_instructions("amx") <= unlimited().instructions:
        pytest.skip("avx2 without amx")
    return pack(net(), (HERE, ROUGH, PLAIN, AMX), folder / "net.pack", OPTIONS, calibrate=samples())


def configs(plan: Plan) -> set[KernelConfig]:
    """Of all contestants."""
    entries = [contestant.implementation for bucket in plan.buckets for contestant in bucket.race.contestants]
    return {implementation.config for implementation in entries if implementation is not None}


def test_plans_differ_by_what_their_devices_offer(packed: Packed) -> None:
    """The engine says what each device offers: products of bytes at `low` alone, products of parts and slices with AMX alone."""
    here, rough, _, amx = packed.plans
    (engine,) = registry.available(["native"])
    there = replace(unlimited(), model=DESCRIBED, instructions=described_instructions("amx"))
    assert not any(config.in_bytes for config in configs(here)) and any(config.in_bytes for config in configs(rough))
    (shipped,) = amx.buckets[0].program.regions
    offered = set(engine.configs("highest", there))
    assert shipped.implementation.config in offered - set(engine.configs("highest", unlimited()))
    assert here.buckets[0].program.regions[0].implementation != shipped.implementation


def test_nothing_of_an_emulated_plan_is_called_measured(packed: Packed, folder: Path) -> None:
    """Its error is the emulator's, its time the roofline's, and this machine does not take it, not even by name."""
    entry, bucket = packed.pack.entries[3], packed.plans[3].buckets[0]
    assert entry.emulated and entry.measured_on == "" and entry.predicted_ms is not None and entry.median_ms is not None
    assert entry.predicted_ms[0] <= entry.median_ms <= entry.predicted_ms[1]
    assert bucket.race.winner.median_ms is None and bucket.race.decided_by == "predicted costs"
    assert entry.error is not None and 0.0 < entry.error <= max(
        BOUNDS["highest"], 4 * bucket.verification.original_error
    )
    assert bricolage.load(folder / "net.pack").choice.entry.target.name != "amx"  # type: ignore[union-attr]
    with pytest.raises(NoTarget, match="'amx' is for instructions that this machine has not: amx_"):
        bricolage.load(folder / "net.pack", target="amx")


def test_a_limit_of_latency_costs_no_decision(packed: Packed) -> None:
    """One that the parent's plan keeps already, with everything else alike."""
    assert packed.pack.entries[2].parent == "here" and packed.plans[2] == packed.plans[0]
    assert packed.pack.entries[2].seconds < packed.pack.entries[0].seconds


def test_who_cannot_be_served_is_named_and_nothing_is_lost(packed: Packed, folder: Path) -> None:
    path = folder / "kept.pack"
    path.write_bytes(b"before")
    hasty = PackTarget("hasty", threads=1, latency_ms=1e-6)
    with pytest.raises(UnservedTargets) as refused:
        pack(net(), (HERE, hasty), path, OPTIONS, provisional=True)
    assert "1 of 2 targets" in str(refused.value) and "'here'" not in refused.value.sentence
    assert "target 'hasty': a call may take 1e-06 ms, and the fastest of precision 'highest' (native" in str(
        refused.value
    )
    assert path.read_bytes() == b"before"
    with Database() as database:
        decided = len(list(database.decision_log()))
        pack(net(), (HERE,), path, OPTIONS, provisional=True)
        assert len(list(database.decision_log())) == decided, "what was decided for the others is taken over"
    assert bricolage.load(path).choice.entry.target == HERE  # type: ignore[union-attr]


def test_instructions_that_are_not_here_are_described(folder: Path) -> None:
    if described_instructions("amx") <= unlimited().instructions:
        pytest.skip("a processor without amx")
    with pytest.raises(BadTargets, match="has amx, and this processor has not; gflops and gbytes would describe one"):
        pack(net(), (replace(AMX, gflops=None, gbytes=None),), folder / "x.pack", OPTIONS)


def test_samples_go_to_targets_that_use_them(packed: Packed) -> None:
    """Scales are for integers, which take part at `low`; what is held back of the samples judges there."""
    judged = [plan.buckets[0].verification.accuracy for plan in packed.plans]
    assert judged[1] is not None and "held back" in judged[1].origin and judged[0] is None


def test_data_has_a_use(folder: Path) -> None:
    with pytest.raises(BadOption, match="--calibrate"):
        pack(net(), (HERE,), folder / "x.pack", OPTIONS, calibrate=samples())
    with pytest.raises(BadTargets, match="'here' asks for the accuracy 'cosine=0.9', and no data is given"):
        pack(net(), (replace(HERE, accuracy="cosine=0.9"),), folder / "x.pack", OPTIONS)
    with pytest.raises(BadOption, match="nodes"):
        pack(net(), (replace(ROUGH, ray="edge"),), folder / "x.pack", OPTIONS, calibrate=samples(), ray="local")


def contestant(name: str, ms: float | None, error: float, *, dropped: float | None = None) -> Contestant:
    return Contestant(
        f"native {name}", "baseline", ms, None, error, dropped is None, dropped_ms=dropped,
        implementation=Implementation("native", KernelConfig(name)),
    )  # fmt: skip


def raced(packed: Packed, *contestants: Contestant, **facts: object) -> Plan:
    """The plan of `rough` with another race: the first contestant ships."""
    names = {"chosen": contestants[0].name, "best_baseline": contestants[0].name, "best_other": ""}
    bucket = alter_bucket(packed.plans[1].buckets[0], contestants=contestants, original_error=2e-7, **names, **facts)
    return replace(packed.plans[1], buckets=(bucket,))


def test_the_most_accurate_that_keeps_the_limit(packed: Packed) -> None:
    """int8 takes 1 ms, halves 2 and float32 4: within 3 ms halves are the most accurate, within 4 float32 is."""
    plan = raced(packed, contestant("int8", 1.0, 5e-2), contestant("bf16", 2.0, 1e-3), contestant("f32", 4.0, 3e-7))

    def words(limit: float, scale: float = 1.0) -> list[str]:
        return list(tighter_words(plan, replace(ROUGH, latency_ms=limit), scale))

    assert words(1.5) == [] and words(3.0) == ["medium"] and words(4.0) == ["highest", "high", "medium"]
    assert words(4.0, scale=2.0) == ["medium"], "times on the target's device are twice those here"
    exact = raced(packed, contestant("f32", 1.0, 3e-7), contestant("bf16", 2.0, 1e-3))
    assert list(tighter_words(exact, replace(ROUGH, latency_ms=4.0), 1.0)) == [], "what ships is as accurate as any"


def test_a_graph_in_integers_has_its_own_error_too(packed: Packed) -> None:
    graph = QuantisedGraph("quantised", 2, (), 8, (4, 1), "raced", "raced", error=4e-2)
    plan = raced(packed, Contestant("quantised on native f32", "plan", 1.0, None, 1e-7, True), quantised=(graph,))
    assert shipped_error(plan.buckets[0]) == 4e-2


def test_a_missed_limit_says_what_would_keep_it(packed: Packed) -> None:
    plan = raced(packed, contestant("f32", 4.0, 3e-7), contestant("int8", None, 5e-2, dropped=1.0))
    target = PackTarget("edge", threads=1, latency_ms=2.0)
    with pytest.raises(TargetMissed) as missed:
        check_latency(plan, target, Estimate.of(4.0, "measured"))
    assert missed.value.sentence == (
        "a call may take 2 ms, and the fastest of precision 'highest' (native f32) takes 4 ms; "
        "'native int8' keeps it with an error of 5.0e-02 (precision 'low')"
    )
    with pytest.raises(TargetMissed, match="is predicted to take 8 ms; 'native int8'"):
        check_latency(plan, target, Estimate.of(8.0, "roofline"))
    check_latency(plan, target, Estimate.of(2.0, "measured"))
    with pytest.raises(TargetMissed, match="not known"):
        check_latency(plan, target, None)


def test_looser_in_every_limit() -> None:
    """More accuracy, less latency and fewer bits are tighter; another measure of accuracy cannot be compared."""
    quick, slow = PackTarget("quick", latency_ms=1.0), PackTarget("slow", latency_ms=2.0)
    assert slow.looser(quick) and not quick.looser(slow) and PackTarget("none").looser(slow)
    assert PackTarget("bits", weights="int8").looser(PackTarget("none")) and not slow.looser(PackTarget("none"))
    top, other = PackTarget("top", accuracy="top1=0.9"), PackTarget("other", accuracy="cosine=0.9")
    assert PackTarget("none").looser(top) and not top.looser(other) and not top.looser(PackTarget("none"))
    assert {target.name: parent and parent.name for target, parent in tree((quick, slow, top))} == {
        "slow": None, "quick": "slow", "top": None,
    }  # fmt: skip


def test_products_of_parts_and_slices_by_the_roofline() -> None:
    """With AMX a product of float32 as six of bfloat16 takes 6/16 of its time, as nine of slices of bytes 9/32; three parts are
    half as many bytes again."""
    amount = workload(prepare(net(), {}).everything)
    device = replace(host(), instructions=described_instructions("amx"))
    on, peaks = Setting(device, device.threads), device.peaks
    for name, factor, bytes_ in (
        ("f32", 1.0, 1.0),
        ("bf16x6", 6 / 16, 1.5),
        ("bf16x3", 3 / 16, 1.0),
        ("int8x9", 9 / 32, 0.75),
    ):
        expected = added_ms(peaks, amount.flops * factor, amount.bytes * bytes_)
        assert least_config_ms(amount, on, KernelConfig(name)) == pytest.approx(expected)
