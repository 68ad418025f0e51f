"""The training behind ``floatscope demo``: a small GPT with FP8 linear layers, its text and its loop."""
