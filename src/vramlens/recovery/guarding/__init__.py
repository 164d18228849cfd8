"""Guarding: training steps that survive out of memory with the gradients they would have had."""
