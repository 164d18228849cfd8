"""Simulated runs.

story: a replay: the answer, the proof, the settings, what is next.
card_words: which cards are large enough.
tuning_story: a tuning: the setting to use, those that were tried, what is next.
json: both as data.
"""
