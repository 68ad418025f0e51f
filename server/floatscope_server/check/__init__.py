"""``floatscope check``: the rules replayed over a log."""
