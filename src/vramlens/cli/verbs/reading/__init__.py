"""Reading: verbs that answer from recordings, texts and traces.

explain: why it ran out of memory, or what a text, trace or flight record says.
leaks: what grows with every step.
view: the picture of a recording.
replay: what other settings would have led to.
tune: the settings to use.
diff: what changed between two runs.
check: a run held against its budget.
ranks: how the ranks of a job differ.
export: files for other tools.
"""
