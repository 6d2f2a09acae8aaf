"""Packs: one model decided for several kinds of devices, here and on Ray nodes, and written once."""
