"""The native engine: tensors (`ir`), how they are fused (`fuse`), and C for processors (`cpu`). `backends.native` is its door."""
