"""Ranks: a comparison of ranks as text, HTML and JSON."""
