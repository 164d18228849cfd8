"""Profile: a profiler trace as text, Markdown and JSON."""
