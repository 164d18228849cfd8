"""Verbs: one module a verb of the command line.

reading: verbs that answer from files which may come from anywhere, held to an allowance.
running: verbs that run, watch or enter a program, look at this machine, or serve.
"""
