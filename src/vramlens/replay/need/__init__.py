"""Need: what a failed step would have needed, and what would have carried it.

advice_order: what a person whose run died reads first: what makes it live, then what may.
batch_findings: the largest batch that fits, as a point, a range, or why neither is known.
continued_step: a failed step continued to its end.
done_without: what a continued step does without: releases of a retry, workspaces.
failure_order: the findings of a failure, in the order that makes them useful.
failure_verdict: the verdict on a failure that ended a program.
inert_settings: settings with which the run comes out as it was recorded.
limit_advice: the limit that lets a run go on, where the process's own limit refused a request.
rest_of_pass: the rest of the pass under way, where nobody knows what follows it.
smaller_batch: the largest batch that fits: the same requests at another scale, replayed.
step_need: what a failed step would have needed to finish.
verdict_findings: an explanation with the judgement of its failure.
whole_run: the need of a run of which all is known.
"""
