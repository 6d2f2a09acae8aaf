"""The operator table: how each ATen operator is computed for several lanes at a time.

Tensors of lanes are stacked: [lanes, *], a tensor without that dimension is shared by all. Which memory format lies below is the
tensor's own affair (strides): convolutions leave [batch, lanes, channels, ...] in memory, products [lanes, batch, ...], and
an operator that needs another order copies. Where an operator has several ways to be computed, they are timed on the model's
tensors (`choose`).

The forms are HFTA's (Wang et al., "Horizontally Fused Training Array", MLSys 2021) where it has one.
"""
