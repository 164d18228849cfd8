"""A trace of PyTorch's profiler, and one call of a profiled function.

story: the answer, the tables, what to do, what is next.
profile_tables: operators, kernels, what was alive at the peak, gaps.
json: the same as data.
function_text: one call of a profiled function.
operator_table: the table of operators as it was asked for.
"""
