"""How operators are divided among alike devices: layouts of tensors, what conversions cost, and searches over both. It knows no
framework."""
