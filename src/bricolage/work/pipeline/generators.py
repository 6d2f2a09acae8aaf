"""The schedules that the field knows, each as a function of devices and micro-batches.

D are devices, N micro-batches, stages are numbered from 0. Where a stage is not on the device of its number, the function says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bricolage.work.pipeline.table import Pass, PassKind, PipelineSchedule


def alternate_passes(
    stage: int, ahead: int, micro_batches: int, version: Callable[[PassKind, int], int] = lambda _kind, _micro: 0
) -> tuple[Pass, ...]:
    """`ahead` forward passes, then a backward and a forward pass in turns."""
    ahead = min(ahead, micro_batches)
    passes = [Pass(stage, "F", micro, version("F", micro)) for micro in range(ahead)]
    for micro in range(micro_batches):
        passes.append(Pass(stage, "B", micro, version("B", micro)))
        if ahead + micro < micro_batches:
            passes.append(Pass(stage, "F", ahead + micro, version("F", ahead + micro)))
    return tuple(passes)


def gpipe(devices: int, micro_batches: int) -> PipelineSchedule:
    """All forward passes, then all backward passes (Huang et al., "GPipe", NeurIPS 2019)."""
    rows = [
        tuple(Pass(stage, kind, micro) for kind in _FB for micro in range(micro_batches)) for stage in range(devices)
    ]
    return PipelineSchedule("gpipe", devices, micro_batches, tuple(rows), (1,) * devices)


_FB: tuple[PassKind, PassKind] = ("F", "B")


def one_f_one_b(devices: int, micro_batches: int) -> PipelineSchedule:
    """Stage s begins with D - s forward passes, then backward and forward take turns; one update at the end.

    Narayanan et al., "PipeDream", SOSP 2019, with a flush; Fan et al., "DAPPLE", PPoPP 2021 (their policy A).
    """
    rows = tuple(alternate_passes(stage, devices - stage, micro_batches) for stage in range(devices))
    return PipelineSchedule("1f1b", devices, micro_batches, rows, (1,) * devices)


def dapple(devices: int, micro_batches: int) -> PipelineSchedule:
    """As 1F1B, with 2 (D - s) - 1 forward passes ahead, so that transfers are hidden (DAPPLE's policy B)."""
    rows = tuple(alternate_passes(stage, 2 * (devices - stage) - 1, micro_batches) for stage in range(devices))
    return PipelineSchedule("dapple", devices, micro_batches, rows, (1,) * devices)


def interleaved(devices: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """Device d has the stages d, d + D, d + 2 D ... (Narayanan et al., "Efficient large-scale language model training", SC 2021).

    Raises:
        ValueError: N is no multiple of D.
    """
    if micro_batches % devices:
        raise ValueError(f"interleaved: {micro_batches} micro-batches are no multiple of {devices} devices")
    total, rows = chunks * micro_batches, []
    for device in range(devices):
        ahead = min(total, 2 * (devices - device - 1) + (chunks - 1) * devices)

        def nth(kind: PassKind, number: int, device: int = device) -> Pass:
            round_, place = divmod(number, devices * chunks)
            chunk = place // devices if kind == "F" else chunks - 1 - place // devices
            return Pass(chunk * devices + device, kind, round_ * devices + place % devices)

        row = [nth("F", number) for number in range(ahead)]
        for number in range(total):
            if ahead + number < total:
                row.append(nth("F", ahead + number))
            row.append(nth("B", number))
        rows.append(tuple(row))
    return PipelineSchedule("interleaved", chunks * devices, micro_batches, tuple(rows), (1,) * devices)


def _zero_bubble(
    name: str, devices: int, micro_batches: int, ahead: Sequence[int], late: Sequence[int]
) -> PipelineSchedule:
    rows = []
    for stage in range(devices):
        row: list[Pass] = []
        for step in alternate_passes(stage, ahead[stage], micro_batches):
            if step.kind == "F":
                row.append(step)
                continue
            row.append(Pass(stage, "I", step.micro_batch))
            if step.micro_batch >= late[stage]:
                row.append(Pass(stage, "W", step.micro_batch - late[stage]))
        row += [Pass(stage, "W", micro) for micro in range(max(0, micro_batches - late[stage]), micro_batches)]
        rows.append(tuple(row))
    return PipelineSchedule(name, devices, micro_batches, tuple(rows), (1,) * devices)


def zb_h1(devices: int, micro_batches: int) -> PipelineSchedule:
    """1F1B with divided backward passes: stage s runs the gradient of the weights s micro-batches later.

    Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024.
    """
    stages = range(devices)
    return _zero_bubble("zb-h1", devices, micro_batches, [devices - stage for stage in stages], list(stages))


def zb_h2(devices: int, micro_batches: int) -> PipelineSchedule:
    """As ZB-H1 with 2 (D - s) - 1 forward passes ahead and 2 s micro-batches of delay: more memory, no bubble by stage."""
    stages = range(devices)
    ahead = [2 * (devices - stage) - 1 for stage in stages]
    return _zero_bubble("zb-h2", devices, micro_batches, ahead, [2 * stage for stage in stages])


class _Vee:
    """A device of a V: the stages d and 2 D - 1 - d, whose passes are counted."""

    def __init__(self, device: int, devices: int) -> None:
        self.row: list[Pass] = []
        self._stages = (device, 2 * devices - 1 - device)
        self._done: dict[tuple[int, PassKind], int] = {}
        self._waiting: list[Pass] = []

    def count(self, half: int, kind: PassKind) -> int:
        return self._done.get((half, kind), 0)

    def run(self, half: int, kind: PassKind) -> None:
        """The next micro-batch."""
        micro = self.count(half, kind)
        self._done[half, kind] = micro + 1
        self.row.append(Pass(self._stages[half], kind, micro))
        if kind == "I":
            self._waiting.append(Pass(self._stages[half], "W", micro))

    def backward(self, half: int, *, divided: bool) -> None:
        """The next one as a whole, or its gradient of the input; both are counted alike."""
        micro = self.count(half, "I")
        if divided:
            self.run(half, "I")
        else:
            self._done[half, "I"] = micro + 1
            self.row.append(Pass(self._stages[half], "B", micro))

    def late_weights(self) -> None:
        """The gradient of the weights that waits longest, if any."""
        if self._waiting:
            self.row.append(self._waiting.pop(0))


def zb_v(devices: int, micro_batches: int) -> PipelineSchedule:
    """Device d has the stages d and 2 D - 1 - d, with divided backward passes and the memory of 1F1B ("Zero bubble", section 6).

    As `torch.distributed.pipelining.ScheduleZBVZeroBubble` has it.
    """
    many, rows = max(2 * devices - 1, micro_batches), []
    for device in range(devices):
        mine = _Vee(device, devices)
        for _ in range(2 * (devices - device) - 1):
            mine.run(0, "F")
        for _ in range(device):
            mine.run(1, "F")
            mine.run(0, "F")
        for _ in range(devices - device):
            for kind in _FIW:
                mine.run(1, kind)
        while mine.count(1, "F") < mine.count(0, "F") or mine.count(0, "F") < many:
            if mine.count(0, "F") < many:
                mine.run(0, "F")
            mine.run(0, "I")
            mine.run(0, "W")
            for kind in _FIW:
                mine.run(1, kind)
        for _ in range(device):
            mine.run(0, "I")
            mine.run(1, "I")
        for _ in range(devices - device):
            mine.run(0, "I")
            mine.run(0, "W")
        for half in (1, 0):
            while mine.count(half, "W") < mine.count(half, "I"):
                mine.run(half, "W")
        rows.append(tuple(step for step in mine.row if step.micro_batch < micro_batches))
    return PipelineSchedule("zb-v", 2 * devices, micro_batches, tuple(rows), (1,) * devices)


_FIW: tuple[PassKind, PassKind, PassKind] = ("F", "I", "W")


def dualpipe_v(devices: int, micro_batches: int) -> PipelineSchedule:
    """A V whose forward and backward passes go in pairs, which may overlap (DeepSeek-AI, DualPipe; its half by Sea AI Lab).

    As `torch.distributed.pipelining.ScheduleDualPipeV` has it; a pair is two passes, one after the other.

    Raises:
        ValueError: there are fewer than 2 D micro-batches.
    """
    if micro_batches < 2 * devices:
        raise ValueError(f"dualpipe-v: {micro_batches} micro-batches are fewer than {2 * devices}, two for each device")
    rows = []
    for device in range(devices):
        mine = _Vee(device, devices)
        rest = devices - device - 1
        for _ in range(2 * rest):
            mine.run(0, "F")
        for _ in range(device + 1):
            mine.run(0, "F")
            mine.run(1, "F")
        for _ in range(rest):
            mine.backward(1, divided=True)
            mine.late_weights()
            mine.run(1, "F")
        for _ in range(micro_batches - 2 * devices + device + 1):
            mine.run(0, "F")
            mine.backward(1, divided=False)
            mine.run(1, "F")
            mine.backward(0, divided=False)
        for _ in range(rest):
            mine.backward(1, divided=False)
            mine.run(1, "F")
            mine.backward(0, divided=False)
        half, divided = (device + 1) // 2, False
        for number in range(device + 1):
            divided |= number == half and device % 2 == 1
            mine.backward(1, divided=divided)
            divided |= number == half and device % 2 == 0
            mine.backward(0, divided=divided)
        for _ in range(rest):
            mine.late_weights()
            mine.backward(0, divided=divided)
        for _ in range(device + 1):
            mine.late_weights()
        rows.append(tuple(mine.row))
    return PipelineSchedule("dualpipe-v", 2 * devices, micro_batches, tuple(rows), (1,) * devices)


def chimera(devices: int, micro_batches: int) -> PipelineSchedule:
    """Two pipelines in opposite directions, half of each D micro-batches in either; more than D follow in blocks.

    Li and Hoefler, "Chimera", SC 2021. In the second direction stage s is on device D - 1 - s, so that each stage is on two
    devices, which add their gradients. A device takes its passes by slots: s + 2 m forward and 2 D - 1 - s + 2 m backward, those
    of a block 2 D after the block before.

    Raises:
        ValueError: D is odd, or N is no multiple of D.
    """
    if devices % 2 or micro_batches % devices:
        raise ValueError(
            f"chimera: {devices} devices have to be even, and {micro_batches} micro-batches a multiple of them"
        )
    half, rows = devices // 2, []
    for device in range(devices):
        slots = []
        for micro in range(micro_batches):
            block, place = divmod(micro, devices)
            stage = device if place < half else devices - 1 - device
            slot = 2 * devices * block + 2 * (place % half)
            slots.append((slot + stage, Pass(stage, "F", micro)))
            slots.append((slot + 2 * devices - 1 - stage, Pass(stage, "B", micro)))
        rows.append(tuple(step for _, step in sorted(slots)))
    return PipelineSchedule("chimera", devices, micro_batches, tuple(rows), (2,) * devices)


def wavelet(devices: int, micro_batches: int) -> PipelineSchedule:
    """Tick and tock waves: one group of D / 2 micro-batches runs forward while the group before it runs backward.

    In the manner of Wang et al., "Wavelet", MLSys 2021, for a model divided between devices: partitions rotate, so that
    micro-batch j of a group begins on device 2 j, and stage s of it is on device s + 2 j (modulo D). Groups begin half a cycle
    apart: the peak of one's memory meets the other's valley. Each device has the weights of D / 2 stages.

    Raises:
        ValueError: D is odd, or N is no multiple of D / 2.
    """
    half = devices // 2
    if devices % 2 or micro_batches % half:
        raise ValueError(
            f"wavelet: {devices} devices have to be even, and {micro_batches} micro-batches a multiple of {half}"
        )
    slots: list[list[tuple[int, Pass]]] = [[] for _ in range(devices)]
    for micro in range(micro_batches):
        group, place = divmod(micro, half)
        for stage in range(devices):
            mine = slots[(stage + 2 * place) % devices]
            mine.append((group * devices + stage, Pass(stage, "F", micro)))
            mine.append(((group + 2) * devices - 1 - stage, Pass(stage, "B", micro)))
    rows = tuple(tuple(step for _, step in sorted(slot)) for slot in slots)
    return PipelineSchedule("wavelet", devices, micro_batches, rows, (1,) * devices)


def _make_update_counter(ahead: int, *, stashed: bool) -> Callable[[PassKind, int], int]:
    """Updates before a pass, one behind each backward pass; `stashed`: the backward pass uses what the forward pass has used."""

    def version(kind: PassKind, micro: int) -> int:
        return micro if kind == "B" and not stashed else max(0, micro - ahead + 1)

    return version


def pipedream(devices: int, micro_batches: int) -> PipelineSchedule:
    """1F1B with an update behind every backward pass; a micro-batch uses one version in both passes ("PipeDream", SOSP 2019).

    Stage s keeps D - s versions of its weights.
    """
    rows = tuple(
        alternate_passes(stage, devices - stage, micro_batches, _make_update_counter(devices - stage, stashed=True))
        for stage in range(devices)
    )
    copies = tuple(devices - stage for stage in range(devices))
    return PipelineSchedule("pipedream", devices, micro_batches, rows, copies, synchronous=False)


def two_bw(devices: int, micro_batches: int, each: int | None = None) -> PipelineSchedule:
    """1F1B with new weights every `each` micro-batches, D by default, of which two versions are kept: the delay is one.

    Narayanan et al., "Memory-efficient pipeline-parallel DNN training", ICML 2021.

    Raises:
        ValueError: `each` is less than D.
    """
    every = devices if each is None else each
    if every < devices:
        raise ValueError(
            f"2bw: new weights every {every} micro-batches need more than two versions on {devices} devices"
        )
    rows = tuple(
        alternate_passes(stage, devices - stage, micro_batches, lambda _kind, micro: max(micro // every - 1, 0))
        for stage in range(devices)
    )
    return PipelineSchedule("2bw", devices, micro_batches, rows, (2,) * devices, synchronous=False)


def pipemare(devices: int, micro_batches: int) -> PipelineSchedule:
    """1F1B with an update behind every backward pass and one version of the weights: both passes use what is there.

    Yang et al., "PipeMare: Asynchronous pipeline parallel DNN training", MLSys 2021.
    """
    rows = tuple(
        alternate_passes(stage, devices - stage, micro_batches, _make_update_counter(devices - stage, stashed=False))
        for stage in range(devices)
    )
    return PipelineSchedule("pipemare", devices, micro_batches, rows, (1,) * devices, synchronous=False)


SCHEDULES: Mapping[str, Callable[[int, int], PipelineSchedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "dapple": dapple,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
    "chimera": chimera,
    "wavelet": wavelet,
    "pipedream": pipedream,
    "2bw": two_bw,
    "pipemare": pipemare,
}
"""By name: a function of devices and micro-batches."""
