"""What is fused, how many kernels that makes, and what fusing could still save."""
