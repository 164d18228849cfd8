"""Alerts: rules, when they fire, and what firing does."""
