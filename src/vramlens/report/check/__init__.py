"""A check of a budget.

story    the answer, each limit, what broke it, what is next
json     the same as data
github   the same as annotations
"""
