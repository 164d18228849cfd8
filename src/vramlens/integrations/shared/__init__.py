"""What the integrations share.

extras: packages that an integration needs, and the message where one is not installed.
figures: the figures of a GPU that go to monitoring systems.
kept_artifacts: a text and files that are kept with a run of an experiment tracker.
loop_monitor: what the callbacks of all training loops share.
training_callback: what the callbacks of trainers have in common.
"""
