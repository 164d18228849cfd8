"""A check of a budget.

story: the answer, each limit, what broke it, what is next.
update_story: a budget that was updated: its limits, what stayed open.
json: the same as data.
github: the same as annotations.
"""
