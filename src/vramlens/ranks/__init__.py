"""Ranks: how the processes of one job differ in memory, why, and who failed first.

Each rank's recording becomes a small summary by itself (a map that runs anywhere); everything that
compares ranks works on summaries and flight records alone (``compare``).

rank_summary: one rank in some kilobytes.
recording_summary: it, from a recording.
line_uses: its lines.
parameter_groups: what training does with its parameters.
frame_uses: the memory of all that a line calls.
hints: what their stacks went through.
rank_comparison: the answer about the ranks of a job.
compare: it, from summaries.
rank_difference: ranks that hold more, for one reason.
excess: why one rank holds more than its peers.
peers: who is compared with whom, and what is usual among them.
shared: leaks that the ranks share.
asides: differences that no failure came from.
rare_steps: in how few steps a rank held more.
avoidable: what one edit would give back, on all ranks or on one.
flights: what flight records tell together.
rank_failures: who failed first.
notes: what keeps ranks from being compared, and which experts are hot.
rank_words: ranks in words, and in names of files.
"""

from vramlens.ground.callable_package import make_callable
from vramlens.ranks.compare import compare
from vramlens.ranks.rank_comparison import Comparison
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary
from vramlens.ranks.recording_summary import summarise

__all__ = ["Comparison", "RankDifference", "RankSummary", "compare", "summarise"]

make_callable(__name__)
