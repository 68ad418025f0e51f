"""``floatscope export``: a run as CSV, Parquet or TensorBoard events."""
