"""Check: a budget's outcome as text, GitHub annotations and JSON."""
