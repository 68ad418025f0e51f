"""What has been packed, on disk: it outlives the process, an outage, and most damage. See docs/spool.md."""
