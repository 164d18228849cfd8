"""Leaks: what grows in the running process, as results that can be printed."""
