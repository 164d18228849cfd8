"""Alerts: rules, when they fire, and what firing does.

rules: what a rule's text means.
alerts: when a rule fires.
actions: callback, line, command and webhook of an alert.
"""
