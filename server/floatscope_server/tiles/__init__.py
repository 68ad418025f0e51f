"""Telemetry at rest: matrices of layers by steps, cut into tiles, with coarser levels above that keep every extreme.

Nothing in here knows a database: geometry, statistics, bytes and pooling are functions of arrays.
"""
