"""The command line; only ``main`` prints errors and exits.

main: the parser of all of it, the verbs, exit codes.
help: what --help prints beside the options.
arguments: options that several verbs take.
asked_prediction: those that decide a prediction, and the prediction.
input, output: recordings read, answers written.
query_output: the rows that a question to a lake gives, as they come.
message: one line on standard error.
interruption: Ctrl-C.
verbs: one module a verb.
"""
