"""A comparison of ranks.

story: the verdict, what differs and why, the ranks, what is next.
ranks_page: the same as a page with a picture.
query_table: the rows of a query of a lake.
json: the same as data.
"""
