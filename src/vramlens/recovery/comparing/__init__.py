"""Comparing: what each way to save memory brings on the user's model.

predicted_strategy: a strategy's peak without a GPU.
strategy_comparison: ``strategies``, each in a process of its own.
strategy_figure: peak by step time, as an SVG.
strategy_kinds: the strategies and what each does to a training.
strategy_run: one strategy's steps, measured.
strategy_table: the answer, as a page and as findings.
script_changes: strategies put into a script from outside, while it runs as it is.
script_strategies: strategies for a script that runs as it is.
strategy_row: a row of the table of strategies.
"""
