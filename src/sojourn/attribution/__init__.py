"""Where the time goes, and which bottleneck that shows."""
