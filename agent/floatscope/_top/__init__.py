"""A live view of runs for a terminal, by ANSI sequences alone."""
