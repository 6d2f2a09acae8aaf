"""What hardware is: devices, memories and the links between them, instruction sets, caches, buffers."""
