"""Engines that run jobs: processes of this machine, and nodes of a Ray cluster."""
