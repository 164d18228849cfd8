"""Turns: what ends a step where no optimizer does: a call of the model, a turn of a loop, or time.

loop_entries: heads that are reached from before a loop.
loop_results: what a loop gathers for a use after it.
loop_turns: turns of the program's outermost loop.
module_calls: calls of the outermost module.
moments: stretches of time in which the program ran.
monitored_heads: heads of loops that are reached, from Python 3.12 on.
other_steps: which of them it is.
traced_heads: heads of loops that are reached, on older Pythons.
training_pause: when training is over, or pauses for long.
unit_rules: what is left of leaks where no optimizer ends a step.
user_loops: the loops of the user's files.
"""
