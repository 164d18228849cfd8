"""Analyses: what a recording, an error's text or a profile says, as frozen answers.

recording_explanation: all there is to say about one recording or text.
explanation, finding, extent: its types.
scene: one recording's parts, each computed once, that findings are made from.
findings: one file a claim, one table.
attribution: who each allocation belongs to: step, phase, category, module, name.
memory: the heap, holes, steps' peaks and the ledger at a moment.
failure: what a failed request hit, and why.
error_text: the same from an error's text alone.
leaks: what grows, how sure that is, and what keeps it.
compare: two runs of one program.
budget: a run held against limits.
profile: a trace of PyTorch's profiler.
evaluation_passes: what evaluation keeps as if a backward pass were to come.
undecided_run: what it means for a predicted run that made-up numbers decide, in words.
unstepped_modules: modules in eval mode whose parameters get gradients that no optimizer uses.
"""
