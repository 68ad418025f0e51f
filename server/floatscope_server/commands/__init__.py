"""Subcommands of the floatscope program."""
