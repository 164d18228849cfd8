"""Leaks: what grows in a recording, how sure that is, and what keeps it.

recorded_leaks: the answer of ``vramlens leaks``.
recorded_leak: a leak with its allocations, and how much of it matters.
growth: what outlives its step, as leaks or with the reason why it is not one.
cohorts, groups: what each stack left behind; which of it is one leak.
rhythm, rate: in which steps, and how much a step.
evidence: what tells a leak from a buffer that has not filled yet.
certainty: how certain so many steps make it.
group_evidence, judgement: what a group shows; the rules over that.
recorded_fix: what to do, in terms of the user's own line.
rebuilt_tensors, reserved_growth, outside_pytorch, sampled_growth: growth that no cohort shows.
"""
