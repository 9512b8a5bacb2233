"""Every verb, registered in the order the help shows."""

from sojourn.cli import starting  # isort: skip
from sojourn.cli import seeing  # isort: skip
from sojourn.cli import calibrate  # isort: skip
from sojourn.cli import simulating  # isort: skip
from sojourn.cli import capacity  # isort: skip
from sojourn.cli import deciding  # isort: skip
from sojourn.cli.app import app

__all__ = ["app", "calibrate", "capacity", "deciding", "seeing", "simulating", "starting"]
