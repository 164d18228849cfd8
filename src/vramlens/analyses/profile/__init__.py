"""Profile: what a trace of PyTorch's profiler says of time and memory.

as_recording: a profiler's trace as a recording.
copy_findings: findings on copies to the GPU in a profiler's trace.
explained_profile: what a profiler trace says of time and memory, ready to be reported.
function_use: what one call of a function did to a device's memory, and which lines did it.
lifetimes: which memory was asked for and given back when, by which operator, and what it likely was.
memory_events: the peak of one device, who held it, the timeline, and what was never given back.
nesting: which span of a thread lies within which.
operator_tables: operators by name, by the shapes of their inputs, by the user's line.
operators: operators and kernels of a profiler trace by name.
overview: how long the trace is, how busy each device was, and what the CPU did while it was not.
profile_findings: a request that failed, memory that grows, a GPU that waits.
recorded_stacks: stacks of a profiler's trace in a recording's form.
remains: what stays after each step of a profiler's trace.
user_lines: the user's innermost Python function at a moment, and at whose behest a backward ran.
"""
