"""The Floatscope server."""
