"""Predicted against measured, on published runs: `make accuracy`."""
