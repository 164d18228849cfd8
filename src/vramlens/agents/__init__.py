"""Agents: a server of the Model Context Protocol over standard input and output.

tool_answers: one tool a function: the short answer, with the lines of code that it speaks of
code_excerpts: those lines, from files below one folder
tool_server: the tools as the protocol has them
worker: one answer in a process of its own, held to its allowance
"""
