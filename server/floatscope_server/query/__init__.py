"""Reading the store."""
