"""``floatscope bench ingest`` and ``floatscope bench query``: the store measured as people use it."""
