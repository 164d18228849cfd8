"""Batch size: the largest batch that fits, from a few small probes."""
