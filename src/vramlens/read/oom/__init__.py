"""Out-of-memory errors in texts: logs, tracebacks, standard error.

oom_figures: the figures of a message
oom_text: the errors in a text of any length
oom_traceback: the traceback above an error in a log
oom_wordings: the wordings of errors, as patterns, and the scan of a log for them
"""
