"""Docs run: every documented command and Python block, every generated page, every link."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli.reference import commands, stale
from sojourn.cli.verbs import app
from sojourn.errors import SojournError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GENERATED = ROOT / "docs" / "reference"
MADE_ELSEWHERE = ("make ",)
"""Commands a page may show that are no `sojourn` call."""


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if kind == language:
                yield f"{page.relative_to(ROOT)}", body


def documented() -> list[tuple[str, str]]:
    found = []
    for page, body in blocks(""):
        for line in body.splitlines():
            if line.startswith("sojourn "):
                found.append((page, line))
            elif line.strip() and not line.startswith(MADE_ELSEWHERE):
                found.append((page, f"# neither a sojourn nor a make command: {line}"))
    return found


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the checkout, in which commands may write."""
    for folder in ("src", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", sorted({page for page, _line in documented()}))
def test_every_documented_command_runs(page: str, checkout: Path) -> None:
    for where, line in documented():
        if where != page:
            continue
        assert not line.startswith("#"), line
        arguments = shlex.split(line)[1:]
        result = CliRunner().invoke(app, arguments)
        if isinstance(result.exception, SojournError):
            raise result.exception
        assert result.exit_code in (0, 3, 4), f"{line}\n{result.output[-2000:]}"
        assert result.output or any(checkout.iterdir())


@pytest.mark.parametrize(("page", "code"), list(blocks("python")))
def test_every_python_block_runs(page: str, code: str, checkout: Path) -> None:
    assert checkout.is_dir()
    exec(compile(code, page, "exec"), {"__name__": page})


def test_the_generated_pages_are_what_the_code_says() -> None:
    assert stale(GENERATED) == []


def test_every_verb_has_a_how_to_page_or_stands_in_the_tutorial() -> None:
    told = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name, _command in commands():
        assert re.search(rf"sojourn {name}\b", told), name


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
