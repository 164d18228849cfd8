"""Diff: a comparison of two runs as text, Markdown, HTML and JSON."""
