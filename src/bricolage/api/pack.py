"""`pack`: one model, several kinds of devices, one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bricolage.base.codec import DecodeError, decode, read_file
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.context import check_again
from bricolage.driver.given_samples import Data, GivenData
from bricolage.driver.packs.pack_making import Packed, make_pack
from bricolage.driver.packs.pack_request import PackRequest
from bricolage.driver.sources import GivenModel
from bricolage.errors import BadTargets, MissingFile
from bricolage.plan.pack import PackTarget, TargetList


def read_targets(path: Path) -> tuple[PackTarget, ...]:
    """The targets that a file lists.

    Raises:
        MissingFile: there is no such file.
        BadTargets: it cannot be read, or lists none.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        return decode(TargetList, read_file(path), "it").target
    except DecodeError as error:
        raise BadTargets(path=path, reason=str(error)) from error


def pack(
    source: object,
    targets: Sequence[PackTarget],
    output: str | Path,
    options: Options | None = None,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    replan: bool = False,
    provisional: bool = False,
    progress: Progress | None = None,
    shown: str | Path = "targets",
    ray: str | None = None,
    calibrate: Data | None = None,
    evaluate: Data | None = None,
) -> Packed:
    """Decides for each target how it runs a model fastest, and writes all plans over one set of weights.

    Args:
        source: as for `optimize`.
        targets: kinds of devices, each this machine or a part of it.
        output: where the pack goes.
        options: what all targets share: effort, budget (of each), backends, shapes. Precision, threads, instruction set and limit
            of memory are the targets'.
        inputs, replan, provisional, progress: as for `optimize`.
        shown: where the targets come from, for errors.
        calibrate, evaluate: as for `optimize`; for the targets whose precision is `low`, or that ask for an accuracy.
        ray: address of the Ray cluster, as `ray.init` takes it, whose nodes decide on the targets with `ray`.

    Raises:
        BadTargets: one asks for what this machine has not, for a node where no cluster is named, or for an accuracy without data.
        UnservedTargets: some have no plan that keeps their limits of latency, memory or accuracy. Nothing is written; what was
            decided for the others is on record.
        BadOption: a cluster is named, and no target is for a node; or `replan` and `provisional` are given together.
        MissingLibrary, UnreachableCluster: the cluster cannot be used.
        PackNodeFailed: a node that a target needs is not there, or its decision came to nothing.
        As `optimize`, of any target.
    """
    check_again(replan, provisional)
    return make_pack(
        PackRequest(
            GivenModel(source, inputs=inputs, data=GivenData.of(calibrate, evaluate)),
            tuple(targets),
            Path(output),
            options or Options(),
            progress or Silent(),
            shown,
            ray,
            replan=replan,
            provisional=provisional,
        )
    )
