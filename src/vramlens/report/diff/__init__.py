"""A comparison of two runs.

story: the answer, the figures, the lines, what else differs, what is next.
diff_notes: what has to be known beside the lines.
job_parts: what is told of a whole job.
json: the same as data.
"""
