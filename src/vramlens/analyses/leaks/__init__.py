"""Leaks: what outlives its step, by line; how sure that is, who keeps it, and what to change."""
