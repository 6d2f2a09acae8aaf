"""Artifacts behind other servers: MLServer, Ray Serve, Triton. Each needs that server's own environment, with bricolage in it."""
