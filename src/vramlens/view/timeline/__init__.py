"""What lies under or over the picture of a run, in time.

bands: the regions that a program marked, as spans under the picture
collective_calls: collectives of a rank
joined_calls: each call once, from its mark and its flight record
kernel_bands: kernels of a profiler's trace as one band under its regions
marked_regions: regions of a recording
what_if_lines: replayed settings as lines over the recorded ones
"""
