"""A check of a budget.

story: the answer, each limit, what broke it, what is next; and a budget that was updated.
json: the same as data.
github: the same as annotations.
"""
