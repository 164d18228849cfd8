"""Leaks: growth as text, Markdown and JSON."""
