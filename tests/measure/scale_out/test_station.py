"""What a node does with what it is asked, without a cluster around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, RegionModel, Resources
from bricolage.base.cache import compiled_directory, machine_id
from bricolage.base.codec import decode, encode
from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.scale_out.messages import Compiled, CompileItem, Measured, MeasureItem, NodeDescription, Setup
from bricolage.measure.scale_out.parcels import Sender, install, name_of
from bricolage.measure.scale_out.station import Station
from bricolage.measure.specs import Limits, TimingPolicy
from bricolage.work.implementation import Implementation, KernelConfig, Team


class Bench:
    """A station, and what is sent to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sender = folder, Sender()
        self.station = Station(dict(encode(Setup("", 1, 1 << 30, registry.registered_references()))))

    def contents(self, names: tuple[str, ...]) -> list[Any]:
        async def sent(name: str) -> bytes:
            return self.sender.read(name)

        return [sent(name) for name in names]

    def compile(self, item: CompileItem, batch: int = 1) -> tuple[Compiled, dict[str, bytes]]:
        async def asked() -> tuple[dict[str, Any], dict[str, bytes]]:
            return await self.station.compile(batch, encode(item), item.needs, self.contents(item.needs))

        answer, contents = asyncio.run(asked())
        return decode(Compiled, answer), contents

    def measure(self, item: MeasureItem, batch: int = 1) -> Measured:
        async def asked() -> dict[str, Any]:
            return await self.station.measure(batch, encode(item), item.needs, self.contents(item.needs))

        return decode(Measured, asyncio.run(asked()))

    def item(self, *names: str, limits: Mapping[str, float] | None = None) -> MeasureItem:
        model = self.sender.region(relu_region(self.folder, "x", "y", 64))
        inputs = self.sender.file(vector(self.folder, ("x",), 64), ".npz")
        expected = self.sender.file(vector(self.folder, ("y",), 64, rectified=True), ".npz")
        made = tuple(Implementation(name, KernelConfig("0.1" if name == "honest" else "f32")) for name in names)
        return MeasureItem(
            "relu 64",
            made,
            ("y",),
            1,
            host().threads,
            model.name,
            inputs,
            expected,
            (*model.needs, inputs, expected),
            1e-6,
            "these",
            limits,
            True,
            TimingPolicy(rounds=2, most_rounds=2, seconds=2.0),
            Limits(60, 60),
            False,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for executor in (made.station._compiling, made.station._timing):
        executor.shutdown()


def test_it_says_what_it_is(bench: Bench) -> None:
    told = decode(NodeDescription, asyncio.run(bench.station.describe()))
    assert (told.machine, told.device) == (machine_id(), host())
    assert told.versions["honest"] == "1.0"


def test_costs_are_kept_where_they_were_measured_before_they_are_told(bench: Bench) -> None:
    item = bench.item("honest", "refuses", "raises")
    found = bench.measure(item)
    assert found.machine == machine_id()
    assert [cost and cost.outcome for cost in found.costs] == ["ok", "refused", "failed"]
    with Database() as database:
        assert {entry.cost.outcome for entry in database.entries()} == {"ok", "refused", "failed"}
    again = bench.measure(item, batch=2)
    for first, second in zip(found.costs, again.costs, strict=True):
        assert first is not None and second is not None
        # What was measured beside other processes is measured once more.
        assert second.date == first.date or (first.disturbed and second.date > first.date)


def test_an_answer_that_is_off_waits_for_the_limits(bench: Bench) -> None:
    item = bench.item("honest", "wrong", limits=None)
    assert bench.measure(item).wants_limits
    told = bench.measure(replace(item, limits={"y": 0.0}), batch=2)
    assert [cost and cost.outcome for cost in told.costs] == ["ok", "wrong"]
    whole = bench.measure(replace(item, may_ask=False, data="of a whole model"), batch=4)
    assert [cost and cost.outcome for cost in whole.costs] == ["ok", "wrong"]
    lenient = bench.measure(replace(item, limits={"y": 10.0}, data="those"), batch=5)
    assert [cost and cost.outcome for cost in lenient.costs] == ["ok", "ok"]


def test_what_is_given_up_is_not_begun(bench: Bench) -> None:
    asyncio.run(bench.station.give_up(4))
    assert bench.measure(bench.item("honest"), batch=4).costs == (None,)
    item = bench.item("honest")
    made = CompileItem(item.implementations[0], item.model, item.needs[:1], 1, host(), 60.0)
    assert bench.compile(made, batch=3)[0].outcome == "lost"


def test_what_does_not_arrive_whole_is_an_error(bench: Bench) -> None:
    async def damaged() -> bytes:
        return b"damaged"

    with pytest.raises(ValueError, match="something else"):
        asyncio.run(bench.station._have((), [name_of(b"content")], [damaged()]))


def test_what_was_sent_with_another_item_is_waited_for(bench: Bench) -> None:
    item = bench.item("honest")

    async def late() -> bytes:
        await asyncio.sleep(0.2)
        return bench.sender.read(item.model)

    async def both() -> list[dict[str, Any]]:
        others = item.needs[1:]
        first = bench.station.measure(1, encode(item), item.needs, [late(), *bench.contents(others)])
        return await asyncio.gather(first, bench.station.measure(1, encode(item), [], []))

    for answer in asyncio.run(both()):
        assert [cost and cost.outcome for cost in decode(Measured, answer).costs] == ["ok"]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(("team", "threads"), [("", 1), ("one-thread", 2)])
def test_code_for_a_device_is_what_is_looked_for_there(bench: Bench, alike: bool, team: Team, threads: int) -> None:
    status = registry.get("native").status()
    if not isinstance(status, Available):
        pytest.skip("the native engine is not available")
    item = bench.item("native")
    device = host() if alike else replace(host(), model="another model of processor")
    wanted = Implementation("native", KernelConfig(team=team))
    found, contents = bench.compile(CompileItem(wanted, item.model, item.needs[:1], threads, device, 60.0))
    assert found.outcome == "ok", found.reason
    (code,) = found.code
    assert "region.so" in code.files
    parent = compiled_directory(host().fingerprint(), "native", status.version)
    assert install(parent, code.folder, code.files, contents.__getitem__)
    region = bench.station._received.path(item.model)
    before = {path.name for path in parent.iterdir()}
    registry.get("native").compile(RegionModel(region), KernelConfig(), Resources(1, host(), cache=parent))
    assert {path.name for path in parent.iterdir()} == before
