"""The bench of the engine recordings: load, client, step log, folders.

Importing it makes the incident's recorder importable: that one is used here, not copied.
"""

from __future__ import annotations

import sys
from pathlib import Path

INCIDENT = Path(__file__).resolve().parents[2] / "incident"
if str(INCIDENT) not in sys.path:
    sys.path.append(str(INCIDENT))
