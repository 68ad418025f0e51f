"""Figures of what was observed, as plotly's JSON: notebooks give them to plotly, a report draws them itself."""
