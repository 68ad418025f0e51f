"""What notebooks and programs read of a server."""
