"""Expressions that compute more than the program uses.

broadcast_rows: all pairs of a column and a vector that were meant row by row.
contraction_order: a product of the wrong two of three factors.
costly_expression: a call that makes more than is often needed.
einsum_order: two einsums, one after the other, in another order.
expression_parts: what an expression calls, and what that is given.
expression_uses: such calls, and what to do instead.
gradient_uses: what a backward pass makes more of, by the operation that failed.
largest_number: a row for each number up to the largest of some ids.
library_uses: functions of libraries, by the frame that asked.
math_attention: attention that no fused kernel takes.
operand_uses: such calls, told by what they are given.
picked_after: all rows of a call, of whose result some are used.
promoted_copy: a wide copy of a narrow tensor, for a wide operand.
repeated_rows: rows of a small table for each pair of positions, which a product takes in.
written_out_view: arithmetic on windows, which were a view.
"""
