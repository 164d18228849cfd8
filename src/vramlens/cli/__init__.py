"""The command line: one module a verb; only ``main`` prints errors and exits."""
