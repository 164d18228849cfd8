"""What ends a step where no optimizer does: a call of the model, a turn of a loop, or time.

Modules:
    other_steps: which of them it is
    module_calls: calls of the outermost module
    loop_turns: turns of the program's outermost loop, traced
    loop_results: what a loop gathers for a use after it
    moments: stretches of time in which objects were made
"""
