"""Replay: simulated runs and tunings as text and JSON."""
