"""Readers, tables, quality, store: telemetry in, tables out."""
