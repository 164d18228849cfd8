"""Source: what the user's code says of a name: where it is filled, bounded and emptied.

bounds: conditions and slices that hold back what grows.
callers_names: what callers call the parameter of a function.
executed_lines: the lines of functions that have run.
expression_forms: questions to an expression by its form alone.
expressions: expressions, read.
counted_bounds: bounds by what the program counts beside a store.
name_candidates: statements that store under a name or an alias.
searched_names: the names to look for.
source_stores: a file's functions, stores and calls.
source_tree: a file's source, parsed.
statement_scores: how well a statement fits.
stored_values: the line that makes a stored value.
tail_reads: histories of which only the last entries are read.
users_source: the user's own files.
whole_reads: where all entries are used, or those that are drawn.
"""
