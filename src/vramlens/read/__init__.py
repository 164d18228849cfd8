"""Readers: files to a Trace."""
