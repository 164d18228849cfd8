"""Findings on the lines that they are about, for editors and code review.

annotation: a finding as every form has it: level, file, line, words.
gcc: as a compiler prints warnings: problem matchers read that.
github_annotations: as workflow commands of GitHub.
sarif: as SARIF 2.1.0, for SARIF viewers and code scanning.
"""

from vramlens.report.editor.annotation import FORMATS, annotated

__all__ = ["FORMATS", "annotated"]
