"""Models of costs from the database of measurements: what `bricolage costs train` does."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage._version import __version__
from bricolage.base.codec import encode
from bricolage.costs.database import Database
from bricolage.costs.entries import SCHEMA
from bricolage.costs.models.learned.fitting import Errors, Sample, fit_costs, left_out
from bricolage.costs.models.learned.installed import own_model
from bricolage.costs.models.learned.model import LearnedCosts
from bricolage.work.cost import Setting


@dataclass(frozen=True)
class TrainedCostModel:
    """A model, and how far others that were trained like it are off on what they had not seen."""

    model: LearnedCosts
    samples: int
    networks: int
    by_network: Errors | None
    """Each network left out once; None where the others are too few."""
    by_machine: Errors | None
    """Each machine left out once; None where the others are too few."""


def place_of_model(out: Path | None = None) -> Path:
    """Where a model goes that is trained here: `out`, or by default the file in which decisions look for the user's own.

    Raises:
        UnsafeCache: the cache folder is not the user's alone.
    """
    return out if out is not None else own_model()


def train_on_records() -> TrainedCostModel:
    """Trains on what the database of this machine holds.

    Raises:
        As `train_costs`; NewerCosts, UnreachableCosts, ...: the database cannot be opened, see `costs.connection`.
    """
    with Database() as database:
        return train_costs(database)


def train_costs(database: Database) -> TrainedCostModel:
    """Trains on every latency in a database whose region and device it describes.

    Raises:
        TooFewCosts: there are not enough.
        MissingLibrary: LightGBM is not installed.
    """
    samples = learning_samples(database)
    networks = {sample.network for sample in samples}
    provenance = {
        "made": datetime.date.today().isoformat(),
        "bricolage": __version__,
        "measurements": str(len(samples)),
        "networks": str(len(networks)),
        "machines": "; ".join(sorted({sample.machine for sample in samples})),
        "backends": ", ".join(sorted({f"{sample.backend} {sample.version}" for sample in samples})),
    }
    model = fit_costs(samples, provenance)
    by_network = left_out(samples, lambda sample: sample.network)
    by_machine = left_out(samples, lambda sample: sample.machine)
    errors = {"errors by network": by_network, "errors by machine": by_machine}
    error_texts = {name: str(error) for name, error in errors.items() if error is not None}
    return TrainedCostModel(
        replace(model, provenance={**provenance, **error_texts}), len(samples), len(networks), by_network, by_machine
    )


def learning_samples(database: Database) -> list[Sample]:
    """What there is to learn from: latencies of single regions that nothing disturbed, in the configuration that the backend's own
    rules of thumb choose, one for each region, implementation, machine and number of threads."""
    workloads, devices = database.workloads(), database.devices()
    samples: dict[tuple[str, str, str, int], Sample] = {}
    for entry in database.entries():  # the newest first
        key, cost = entry.key, entry.cost
        workload, device = workloads.get(key.region), devices.get(key.device)
        usable = cost.latency is not None and not cost.disturbed and key.schema == SCHEMA
        if workload is None or device is None or not usable or "{" in key.config or "+" in key.backend:
            continue
        assert cost.latency is not None
        machine = f"{device.model}, {device.isa or 'everything'}"
        name = f"{key.backend} {key.config}"
        sample = Sample(
            workload,
            Setting(device, key.threads),
            implementation=name,
            ms=max(cost.latency.median_ms, 1e-6),
            region=key.region,
            network=workload.network,
            machine=machine,
            version=key.version,
        )
        samples.setdefault((key.region, name, key.device, key.threads), sample)
    return list(samples.values())


def to_json(model: LearnedCosts) -> str:
    """A model as a file holds it."""
    return json.dumps(encode(model), separators=(",", ":")) + "\n"
