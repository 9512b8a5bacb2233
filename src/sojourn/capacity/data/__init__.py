"""Rows of the catalogue: figures with their sources, no code."""
