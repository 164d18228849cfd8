"""Likeness: how a failed step's requests pair with the earlier step's that it repeats.

paired_requests: pairs by order, put right where one of the two made a request more.
larger_pass: how many times as large it is as the passes before it.
earlier_pass: what an earlier pass through the same model kept.
kept_longer: what the step keeps that the earlier one had given back.
left_behind: what the earlier one made that is still there beside the step's own.
"""
