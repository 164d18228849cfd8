"""Error text: what the message of an out-of-memory error proves by itself.

engines: what the budgets that vLLM and SGLang print, and NCCL's own lines, say about a failure.
figure_findings: what else the figures show: other processes, stray contexts.
host_memory: failures of the host's memory that look like the GPU's: what the text of one proves.
libraries: who else asks for GPU memory than PyTorch's cache.
message_sums: the sums of one message: who holds what, and what refused the request.
no_memory: errors that look like out of memory and are none, or that print no figures.
other_ranks: the other ranks that ran out of memory, as a log says.
refusal: a refused request as its message tells of it.
text_headline: the number, or the fact, that changes what the reader does next.
text_verdict: what the text of an out-of-memory error proves by itself.
wall_findings: the findings about what refused a request.
"""
