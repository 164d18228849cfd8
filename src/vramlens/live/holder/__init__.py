"""Holder: the chain from a root to a tensor, and the statement that keeps it."""
