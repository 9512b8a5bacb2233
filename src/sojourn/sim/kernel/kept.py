"""Where the compiled kernel is kept between runs, and that it is whole.

It is compiled in a folder of its own, which takes its place in one step when all is there and its
seal (a digest of every file) is written: an interrupted run, a second process or a full disk leave
nothing half done, and what was damaged since is compiled anew instead of being run.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_SEAL: Final = "seal"


class Kept:
    """The kept kernel of one name. `folder`: where the compiler reads and writes, None where no
    folder can be written; `ready`: whether it holds the whole kernel."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._home: Path | None = None
        self._work: Path | None = None
        self.folder: Path | None = None
        self.ready = False
        for base in _bases():
            if self._use(base / name) or self._begin(base):
                return

    def finish(self) -> None:
        """All is compiled: it takes its place."""
        self.ready = True
        if self._work is None or self._home is None:
            return
        try:
            (self._work / _SEAL).write_text(_digest(self._work))
            if self._home.exists() and not _is_whole(self._home):
                shutil.rmtree(self._home, ignore_errors=True)
            self._work.rename(self._home)
        except OSError:  # another process was first, or the disk is full: it lasts for this run
            return
        self.folder, self._work = self._home, None

    def place(self) -> str:
        """Where it will be, for people."""
        return "for this run alone" if self._home is None else f"in {self._home}"

    def _use(self, there: Path) -> bool:
        """The compiler wants to write where it reads: a folder that is read only is copied."""
        if not _is_whole(there):
            return False
        if not os.access(there, os.W_OK):
            try:
                copied = Path(tempfile.mkdtemp(prefix="sojourn-"))
                atexit.register(shutil.rmtree, copied, ignore_errors=True)
                shutil.copytree(there, copied, dirs_exist_ok=True)
            except OSError:
                return False
            there = copied
        self.folder, self.ready = there, True
        return True

    def _begin(self, base: Path) -> bool:
        try:
            base.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f"{self._name}-", dir=base))
        except OSError:
            return False
        atexit.register(shutil.rmtree, work, ignore_errors=True)  # gone, once it has its place
        self.folder = self._work = work
        self._home = base / self._name
        return True


def _bases() -> list[Path]:
    """Folders to keep it in, the best first: SOJOURN_CACHE_DIR, the user's cache, and one for
    temporary files that is this user's own."""
    found = []
    home = os.environ.get("SOJOURN_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if home:
        found.append(Path(home) / "sojourn")
    else:
        with contextlib.suppress(RuntimeError):  # no home
            found.append(Path.home() / ".cache" / "sojourn")
    try:
        owner = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
        shared = Path(tempfile.gettempdir()) / f"sojourn-{owner}"
        shared.mkdir(mode=0o700, exist_ok=True)
        if not hasattr(os, "getuid") or (shared.stat().st_uid == os.getuid()):
            found.append(shared)
    except OSError:  # no folder for temporary files either
        pass
    return found


def _is_whole(folder: Path) -> bool:
    try:
        return (folder / _SEAL).read_text() == _digest(folder)
    except (OSError, ValueError):
        return False


def _digest(folder: Path) -> str:
    """Of every file but the seal, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _SEAL:
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
