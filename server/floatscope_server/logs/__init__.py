"""``floatscope import`` and ``floatscope follow``: logs of others as runs of the server, over the agents' protocol."""
