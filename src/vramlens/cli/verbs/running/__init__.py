"""Running: verbs that run, watch or enter a program, look at this machine, or serve.

run: a program, recorded.
predict: the peak of a script before its first run.
strategies: how much memory each technique saves.
top: every GPU and process now.
dump: a recording of a program that runs under vramlens.
attach: a recording of a program that nobody prepared.
doctor: what on this machine helps or hinders.
mcp: the questions as tools for agents.
"""
