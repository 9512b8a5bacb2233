"""The readable engine: one event per engine step, every rule of the rule book in plain sight."""
