"""Ranks: how the processes of one job differ in memory, why, and who failed first.

Each rank's recording becomes a small summary by itself (a map that runs anywhere); everything that
compares ranks works on summaries and flight records alone (``compare``).
"""

from vramlens.ranks.compare import Comparison, compare
from vramlens.ranks.difference import Difference
from vramlens.ranks.summary import RankSummary, summarise

__all__ = ["Comparison", "Difference", "RankSummary", "compare", "summarise"]
