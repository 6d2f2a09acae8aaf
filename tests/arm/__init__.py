"""The whole product on 64-bit Arm, in an emulated Debian: `python -m tests.arm`."""
