"""Attaching to trainings that say nothing of us: what ``floatscope run`` has happen in each Python process."""
