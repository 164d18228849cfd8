"""A leak, wherever it was found: in a recording or in the running process. Standard library only.

leak: a leak and its owner, as types and as JSON.
claim: a leak in words, the same in every report.
fixes: what to do, by class.
"""
