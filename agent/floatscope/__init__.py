"""Live numeric-health telemetry for mixed-precision training."""
