"""Compiling and measuring on the nodes of a Ray cluster (docs/manual/ray.md): files that travel by digest (`parcels`), what is
asked and answered (`items`), who does what (`dispatch`), what runs on a node (`station`), and the cluster (`cluster`), which alone
imports ray."""
