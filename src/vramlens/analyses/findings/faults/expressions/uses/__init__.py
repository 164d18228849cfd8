"""What the expression that failed makes more of than may be needed, and what to do instead.

expression_uses: by its text.
gradient_uses: of a backward pass, by the operation that failed.
largest_number: a row for each number up to the largest of some ids.
library_uses: functions of libraries, by the frame that asked.
math_attention: attention that no fused kernel takes.
operand_uses: by what it is given.
promoted_copy: a wide copy of a narrow tensor, for a wide operand.
shuffled_rows: all rows of a data set in another order.
"""
