"""Requests that the program need not make: what the expression that failed says of them.

costly_expression: a call that makes more than is often needed.
expression_uses: such calls, and what to do instead.
"""
