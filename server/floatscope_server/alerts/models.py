"""Tables of alerts."""
