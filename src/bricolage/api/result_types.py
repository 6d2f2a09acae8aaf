"""Types of what the verbs take and return, for those who hand it on."""

from __future__ import annotations

from bricolage.backends.interface import Anatomy
from bricolage.driver.model_tuning import Tuned
from bricolage.driver.plan_scheduling import Scheduled
from bricolage.driver.simulated_devices import Simulated
from bricolage.graph.graph import Graph
from bricolage.plan.pack import Pack
from bricolage.plan.plan import Bucket, Plan
from bricolage.work.values import ModelValue

__all__ = ["Anatomy", "Bucket", "Graph", "ModelValue", "Pack", "Plan", "Scheduled", "Simulated", "Tuned"]
