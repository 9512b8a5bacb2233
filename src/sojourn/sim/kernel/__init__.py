"""The compiled engine: many steps per event, no Python objects inside. Same rules, same log."""
