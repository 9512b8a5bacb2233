"""Import and help times; time and peak memory of the whole demo.

python benchmarks/start_up.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5


def best(command: list[str], repeats: int) -> float:
    """Shortest wall time of a command, seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the figures."""
    python = sys.executable
    bare = best([python, "-c", "pass"], REPEATS)
    imported = best([python, "-c", "import sojourn"], REPEATS)
    helped = best([python, "-m", "sojourn", "--help"], REPEATS)
    with tempfile.TemporaryDirectory() as folder:
        page = str(Path(folder) / "report.html")
        demo = best([python, "-m", "sojourn", "demo", "--quiet", "-o", page], 1)
        size = Path(page).stat().st_size
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"python alone            {bare:.3f} s")
    print(f"import sojourn          {imported - bare:+.3f} s")
    print(f"sojourn --help          {helped:.3f} s")
    print(f"sojourn demo            {demo:.1f} s, {peak:.0f} MiB at most, page {size // 1024} KiB")


if __name__ == "__main__":
    main()
