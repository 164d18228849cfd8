"""Budgets: limits for a run, and what broke them.

budget: a run held against a budget.
job_check: a job's ranks held against it.
broken_limits: findings, with the lines that rose.
budget_file: a budget read and written.
budget_values: what a run has of what a limit is about.
budget_update: a budget rewritten from a run.
predicted_script: the script, where the run was predicted.
"""
