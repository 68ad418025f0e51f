"""Alerts: from what the rules find to what a person receives."""
