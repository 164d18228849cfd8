"""Expressions that compute more than the program uses.

broadcast_rows: all pairs of a column and a vector that were meant row by row.
contraction_order: a product of the wrong two of three factors.
costly_expression: a call that makes more than is often needed.
einsum_order: two einsums, one after the other, in another order.
expression_parts: what an expression calls, and what that is given.
picked_after: all rows of a call, of whose result some are used.
repeated_rows: rows of a small table for each pair of positions, which a product takes in.
uses: such calls, and what to do instead.
written_out_view: arithmetic on windows, which were a view.
"""
