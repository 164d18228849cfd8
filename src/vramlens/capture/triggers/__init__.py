"""Triggers: the moments at which a recording is written: failure, signal, request, end."""
