"""Explain: an explanation as text, Markdown and JSON."""
