"""What is wrong with a machine or with a training's configuration before the training starts.

``look`` gathers facts, ``examine`` and ``lint`` judge them without touching anything, so that every judgement can be
made, and tested, on a machine that has none of the hardware.
"""
