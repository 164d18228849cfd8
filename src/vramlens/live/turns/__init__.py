"""Turns: what ends a step where no optimizer does: a call of the model, a turn of a loop, or time.

loop_results: what a loop gathers for a use after it.
loop_turns: turns of the program's outermost loop, traced.
module_calls: calls of the outermost module.
moments: stretches of time in which the program ran.
other_steps: which of them it is.
unit_rules: what is left of leaks where no optimizer ends a step.
"""
