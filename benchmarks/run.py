"""Every benchmark, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run each script beside this one."""
    for script in sorted(HERE.glob("*.py")):
        if script.name != Path(__file__).name:
            print(f"\n# {script.name}", flush=True)
            subprocess.run([sys.executable, str(script)], check=True)


if __name__ == "__main__":
    main()
