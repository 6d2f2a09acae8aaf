"""Schedules as PyTorch reads them: its own reader, its own addition of sends and receives, its own simulator."""

from __future__ import annotations

import pytest

from bricolage.errors import BadOption
from bricolage.work.pipeline.csv import from_text, table_text, to_csv
from bricolage.work.pipeline.generators import SCHEDULES

REFUSED = {
    "chimera": "on 2 devices",
    "wavelet": "on 2 devices",
    "pipedream": "updates",
    "2bw": "updates",
    "pipemare": "updates",
}


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - set(REFUSED)))
def test_pytorch_runs_what_is_written(name: str) -> None:
    from torch.distributed.pipelining import schedules

    schedule = SCHEDULES[name](4, 8)
    lines = to_csv(schedule).splitlines()
    rows = {rank: [schedules._Action.from_str(cell) for cell in line.split(",")] for rank, line in enumerate(lines)}
    home = {stage: device for (stage, _), device in schedule.device.items()}
    sent = schedules._add_send_recv(rows, home.__getitem__, schedule.stages)
    simulated = schedules._simulate_comms_compute(sent, home.__getitem__, schedule.stages)
    done = [str(one) for row in simulated.values() for one in row if one is not None]
    assert set(map(str, (one for row in schedule.rows for one in row))) <= set(done)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_pytorch_cannot_run_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadOption, match=REFUSED[name]):
        to_csv(SCHEDULES[name](4, 8))


def test_cells() -> None:
    assert to_csv(SCHEDULES["zb-h1"](2, 2)) == "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"


@pytest.mark.parametrize("name", SCHEDULES)
def test_tables_are_read_as_they_were_written(name: str) -> None:
    schedule = SCHEDULES[name](4, 8)
    found = from_text(name, table_text(schedule), synchronous=schedule.synchronous)
    assert found.rows == schedule.rows and (found.stages, found.micro_batches) == (schedule.stages, 8)
