"""Requests that the program need not make.

broadcast_rows: all pairs of a column and a vector that were meant row by row.
concatenated_copy: all gradients or parameters in one tensor.
contraction_order: a product of the wrong two of three factors.
converted_whole: the wide form of a tensor that is kept in a narrow type.
costly_expression: a call that makes more than is often needed.
dense_embedding_gradient: gradients as large as an embedding's table.
expression_parts: what an expression calls, and what that is given.
expression_uses: such calls, and what to do instead.
joint_covariance: the covariance of all points that a Gaussian process is asked about.
large_request: a request that no limit would have held.
loaded_whole: a file that is loaded to the GPU as a whole.
operand_uses: such calls, told by what they are given.
picked_after: all rows of a call, of whose result some are used.
rebuilt_collection: the new entries of a list, beside all the old ones.
written_out_view: arithmetic on windows, which were a view.
"""
