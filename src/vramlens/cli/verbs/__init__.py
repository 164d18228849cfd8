"""Verbs: one module a verb of the command line."""
