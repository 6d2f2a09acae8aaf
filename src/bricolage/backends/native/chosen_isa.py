"""The instruction set that the native engine's C is made for."""

from __future__ import annotations

import os

from bricolage.device.device import Device
from bricolage.errors import Refused
from bricolage.native.cpu.isa import ISAS, Isa, available_isas, find_isa
from bricolage.native.library_files import TITLE

FORCED_ISA_VARIABLE = "BRICOLAGE_NATIVE_ISA"
"""Environment variable that forces one of the generator's own instruction sets (plain C, an emulated matrix unit), for tests of its
code. It is no property of a device, of which backends other than this one would have to be told, but of the generated C, like the
variables of the compiler and its optimisation level: all three are read where C is made, and are a part of this backend's version,
so that costs are not mixed. What a user may choose is the device's."""


def instruction_set(device: Device) -> Isa:
    """The best instruction set that runs on a device, or the one that is forced.

    Raises:
        Refused: the forced one is unknown or does not run here.
    """
    wanted = os.environ.get(FORCED_ISA_VARIABLE)
    if not wanted:
        return available_isas(device)[0]
    forced_isa = find_isa(wanted, device)
    if forced_isa is None:
        isa_names = ", ".join(isa.name for isa in ISAS)
        raise Refused(
            backend=TITLE, reason=f"{FORCED_ISA_VARIABLE}={wanted} does not run here (there are: {isa_names})"
        )
    return forced_isa
