"""Analyses: one question a module, from a Trace to a report and findings."""
