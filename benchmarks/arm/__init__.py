"""`python -m benchmarks.arm`: the native engine on 64-bit Arm, right in an emulator, and what its assembly says of its speed.

`emulation` makes a process take its processor for an Arm one.
"""
