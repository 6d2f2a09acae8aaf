"""What a pack is asked for, and with which options each of its targets is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base.options import Options, available_cores, default_isa
from bricolage.base.progress import Progress
from bricolage.device.host import unlimited
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

    def options_of(self, target: PackTarget) -> Options:
        """Of a target's decision.

        Raises:
            BadTargets: this machine has fewer threads, or not these instructions.
        """
        threads = target.threads or min(self.options.threads, available_cores())
        if threads > available_cores():
            reason = f"target '{target.name}' has {threads} threads, and this process may use {available_cores()}"
            raise BadTargets(path=self.shown, reason=reason)
        if target.isa and not unlimited().has(target.isa):
            reason = f"target '{target.name}' has {target.isa}, and this processor has not"
            raise BadTargets(path=self.shown, reason=reason)
        try:
            options = replace(
                self.options,
                precision=target.precision,
                threads=threads,
                isa=target.isa or default_isa(),
                memory_limit_mb=target.memory_mb,
                objective="latency",
            )
            options.check_here()
        except BadOption as error:
            raise BadTargets(path=self.shown, reason=f"target '{target.name}': {error.sentence}") from error
        return options
