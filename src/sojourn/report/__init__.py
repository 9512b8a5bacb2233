"""Blocks, and their rendering as console text, self-contained HTML and JSON."""
