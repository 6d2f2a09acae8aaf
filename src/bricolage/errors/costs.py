"""Of measured costs, cost models and the cluster that measures."""

from __future__ import annotations

from bricolage.errors.base import UsageError


class NewerCosts(UsageError):
    what = (
        "the cost database {place} was made by a later bricolage (its tables are of version {found}, known are {known})"
    )
    hint = "Update bricolage, or name another cache folder (BRICOLAGE_CACHE) or database (BRICOLAGE_COSTS)"


class UnreachableCosts(UsageError):
    what = "the cost database {place} cannot be used: {reason}"
    hint = "Start it or correct BRICOLAGE_COSTS; without that variable costs are kept in the cache folder"


class UnreachableCluster(UsageError):
    what = "the Ray cluster '{address}' cannot be used: {reason}"
    hint = "Start it (ray start --head), give its address (auto, HOST:6379), or --ray local for processes of this machine alone"


class NoMeasuringNode(UsageError):
    """Costs hold for a device class, so that others can only compile."""

    what = (
        "no node of the Ray cluster '{address}' is a machine like this one ({device}) with the same versions: {reasons}"
    )
    hint = "Add such a node, install the same versions there, or leave --ray out"


class TooFewCosts(UsageError):
    what = "there are {found} measurements to learn from, and at least {needed} are needed"
    hint = "Optimise some models first, or import what others measured: bricolage costs import FILE"


class BadCostModel(UsageError):
    what = "'{path}' is not a cost model: {reason}"
    hint = "Make one with `bricolage costs train`"
