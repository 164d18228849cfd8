"""Findings: one file a claim about memory, each with its bytes, place, evidence and fix."""
