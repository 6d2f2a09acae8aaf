"""Which layers of a convolutional network are computed together, by the memory traffic that it saves."""
