"""Comparing: what changed between runs of one program.

diff_answer: the answer.
run_diff: it, from runs.
diff_findings: as claims.
differences: what else differs.
compared_run: what a recording has to be compared by.
alignment, file_alignment, line_alignment: which lines of two versions are one.
overlap: whether two runs are one program.
request_sizes: how large what each line asks for is, and what it was multiplied by.
scale: whether that means another batch, input, model or dtype.
work_sizes: how much work a command asks for.
finding_changes: problems that came or went.
growth_changes: growth by line.
job_change: a job before and after, by rank.
profile_differences: what differs between two traces of PyTorch's profiler beside their memory.
"""
