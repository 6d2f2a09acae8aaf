"""A language model's next token with weights of 4 bits, ours beside other runtimes: see `__main__`."""
