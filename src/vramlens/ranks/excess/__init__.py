"""Why one rank holds more than its peers.

rank_differences: all reasons: a leak, lines, the allocator, memory outside PyTorch.
rank_against_peers: one rank beside what is usual among its peers.
line_excess: a line that holds more.
causes: why a line does.
"""
