"""Growth: which bytes each step leaves behind, by objects and by counters."""
