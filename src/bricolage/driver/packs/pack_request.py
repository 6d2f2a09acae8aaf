"""What a pack is asked for, and with which options each of its targets is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base.options import ISAS, Options, available_cores, default_isa
from bricolage.base.progress import Progress
from bricolage.driver.given_samples import NO_DATA, GivenData
from bricolage.driver.packs.described_target import is_elsewhere
from bricolage.driver.sources import GivenModel
from bricolage.errors import BadOption, BadTargets
from bricolage.plan.pack import PackTarget


@dataclass(frozen=True)
class PackRequest:
    """A model, the targets, and where the pack goes. Fields that are not explained here are those of `pack`."""

    model: GivenModel
    targets: tuple[PackTarget, ...]
    output: Path
    options: Options
    """That all targets share."""
    progress: Progress
    shown: str | Path = "targets"
    ray: str | None = None
    replan: bool = False
    provisional: bool = False

    @property
    def here(self) -> tuple[PackTarget, ...]:
        """Targets that are this machine, or a part of it."""
        return tuple(target for target in self.targets if not target.ray)

    @property
    def afar(self) -> tuple[PackTarget, ...]:
        """Targets that Ray nodes decide on."""
        return tuple(target for target in self.targets if target.ray)

    def check_cluster(self) -> None:
        """Whether a cluster is named where targets need one, and only there.

        Raises:
            BadTargets, BadOption: it is not so.
        """
        afar = self.afar
        if afar and self.ray is None:
            need = f"target '{afar[0].name}' is for a node with '{afar[0].ray}'"
            raise BadTargets(path=self.shown, reason=f"{need}, and no Ray cluster is named (--ray ADDRESS)")
        if self.ray is not None and not afar:
            advice = "Give a target `ray = ...`, or leave the cluster out"
            raise BadOption(option="--ray", value=self.ray, advice=advice)

    def data_of(self, data: GivenData, options: Options) -> GivenData:
        """What of the user's data a decision with these options is made with: scales are for integers, which take part at `low`."""
        if options.precision == "low":
            return data
        return replace(data, calibrate=None) if options.accuracy != "relative" else NO_DATA

    def check_data(self) -> None:
        """Whether data goes with the targets.

        Raises:
            BadTargets: a target asks for an accuracy that is measured on data, and there is none.
            BadOption: data has no use, or is given together with targets on nodes, which get none.
        """
        if not self.model.data.named:
            for target in self.targets:
                if target.accuracy != "relative":
                    need = f"target '{target.name}' asks for the accuracy '{target.accuracy}'"
                    raise BadTargets(path=self.shown, reason=f"{need}, and no data is given (--evaluate DATA.npz)")
            return
        option = self.model.data.named[0][0]
        if self.afar:
            advice = "Nodes of a cluster get none: leave the data out, or `ray` out of the targets"
            raise BadOption(option=option, value="given with targets on nodes", advice=advice)
        if not any(target.precision == "low" or target.accuracy != "relative" for target in self.targets):
            advice = "Give a target precision = 'low', in which integers take part, or an accuracy"
            raise BadOption(option=option, value="given, and no target uses it", advice=advice)

    def options_of(self, target: PackTarget) -> Options:
        """Of a target's decision.

        Raises:
            BadTargets: this machine has fewer threads, or not these instructions.
        """
        threads = target.threads or min(self.options.threads, available_cores())
        # What runs there is predicted from what runs here, on as many threads as there are here.
        threads = min(threads, available_cores()) if is_elsewhere(target) else threads
        if threads > available_cores():
            reason = f"target '{target.name}' has {threads} threads, and this process may use {available_cores()}"
            raise BadTargets(path=self.shown, reason=reason)
        if is_elsewhere(target) and target.peaks is None:
            reason = f"target '{target.name}' has {target.isa}, and this processor has not; gflops and gbytes would describe one"
            raise BadTargets(path=self.shown, reason=reason)
        try:
            options = replace(
                self.options,
                precision=target.precision,
                threads=threads,
                isa=target.isa if target.isa in ISAS and not is_elsewhere(target) else default_isa(),
                memory_limit_mb=target.memory_mb,
                weights=target.weights,
                accuracy=target.accuracy,
                objective="latency",
            )
            options.check_here()
        except BadOption as error:
            raise BadTargets(path=self.shown, reason=f"target '{target.name}': {error.sentence}") from error
        return options
