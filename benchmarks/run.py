"""Every benchmark, one after the other; --quick for small sizes, where a script knows any."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import sim_peers

HERE = Path(__file__).resolve().parent
SCRIPTS: dict[str, tuple[str, ...]] = {
    "start_up.py": (),
    "recorded_pairs.py": (),
    "fit_roofline.py": (),
    "sim_speed.py": ("--requests", "50000", "--chain-requests", "20000"),
    "sim_peers.py": ("--requests", "2000", "--customers", "10000"),
}
"""Scripts and what makes them quick."""


def main() -> None:
    """Run each script; the peers only where they are installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    for name, small in SCRIPTS.items():
        if name == "sim_peers.py" and not sim_peers.default_folder().exists():
            print(f"\n# {name}: left out, its peers are not installed (see --install)", flush=True)
            continue
        print(f"\n# {name}", flush=True)
        command = [sys.executable, str(HERE / name), *(small if quick else ())]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
