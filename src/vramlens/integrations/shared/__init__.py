"""What the integrations share.

extras: packages that an integration needs, and the message where one is not installed.
figures: the figures of a GPU that go to monitoring systems.
kept_artifacts: a text and files that are kept with a run of an experiment tracker.
loop_monitor: what the callbacks of all training loops share.
program_totals: totals of what programs count, which never fall.
rank_peaks: the peaks of all ranks, through the store of the process group.
uncaught_error: the error that ends a program.
training_callback: what the callbacks of trainers have in common.
"""
