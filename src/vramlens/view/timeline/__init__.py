"""What lies under or over the picture of a run, in time.

bands: the regions that a program marked, as spans under the picture
collective_calls: collectives of a rank
joined_calls: each call once, from its mark and its flight record
marked_regions: regions of a recording
what_if_lines: replayed settings as lines over the recorded ones
"""
