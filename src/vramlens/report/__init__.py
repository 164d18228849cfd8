"""Reports: an Explanation as text, JSON or Markdown."""
