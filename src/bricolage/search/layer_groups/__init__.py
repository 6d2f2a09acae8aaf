"""Which layers are computed together, a few rows at a time, by the traffic that it saves between a buffer and the memory behind it."""
