"""What grows with every step.

story: the answer, the leaks, what only seems to leak, what is next.
leak_claim: one leak as a paragraph.
json: the same as data.
"""
