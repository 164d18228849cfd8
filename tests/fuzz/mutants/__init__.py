"""Structured mutants of every format but bare snapshots' bytes, through every verb that reads
them.
"""
