"""sojourn: where requests spend their time, how long the fleet holds, what to fix first."""

__version__ = "0.1.0"
