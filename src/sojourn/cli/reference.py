"""The generated reference pages: tables, configuration, command line, catalogue.

`python -m sojourn.cli.reference FOLDER` writes them, `--check` compares instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from sojourn.attribution import rules, scoring
from sojourn.capacity.catalogue_page import catalogue_page
from sojourn.cli.scenario_reference import scenario_page
from sojourn.cli.verbs import app
from sojourn.config import Analysis, BucketRule, Buckets, Config, Deployment, Retry, Slo, Station
from sojourn.plan import scoring as weighing
from sojourn.plan.actions import ACTIONS
from sojourn.records import words, write_atomic
from sojourn.trace.reference import tables_page


def config_page() -> str:
    """Every key of sojourn.yaml with its default and meaning."""
    sections: list[tuple[str, type[BaseModel]]] = [
        ("(top)", Config),
        ("buckets", Buckets),
        ("buckets.custom[]", BucketRule),
        ("slo.NAME", Slo),
        ("deployment", Deployment),
        ("stations.NAME", Station),
        ("retry", Retry),
        ("analysis", Analysis),
    ]
    lines = ["# sojourn.yaml", "", "Generated from `sojourn.config`. Every key is optional.", ""]
    for title, model in sections:
        lines += [f"## {title}", "", "| key | default | meaning |", "| --- | --- | --- |"]
        for name, info in model.model_fields.items():
            default = info.get_default(call_default_factory=True, validated_data={})
            lines.append(f"| `{name}` | {_written(default, info)} | {info.description} |")
        lines.append("")
    return "\n".join(lines)


ORDER: Final = ("demo", "init", "ingest", "profile", "attribute", "calibrate", "capacity")


def _written(default: object, info: FieldInfo) -> str:
    """A default as YAML writes it."""
    if info.is_required():
        return "required"
    if default is None:
        return "unset"
    if isinstance(default, BaseModel | dict | tuple):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def commands() -> list[tuple[str, Any]]:
    """Every verb with its command object, in the order of the loop."""
    known: dict[str, Any] = getattr(get_command(app), "commands", {})
    return sorted(known.items(), key=lambda item: ORDER.index(item[0]) if item[0] in ORDER else 99)


def cli_page() -> str:
    """Every verb, its arguments and options, and the exit codes."""
    lines = [
        "# Command line",
        "",
        "Generated from `sojourn.cli`. Results go to standard output, talk to standard error.",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        "| 0 | the SLO is met, the change accepted, or nothing was to be judged |",
        "| 1 | the tool failed |",
        "| 2 | the call, the configuration or an input was wrong |",
        "| 3 | the SLO is missed, or the change is a regression or not worth its price |",
        "| 4 | the evidence is too thin to decide |",
        "",
    ]
    for name, command in commands():
        lines += [f"## sojourn {name}", "", (command.help or "").strip(), ""]
        lines += ["| argument or option | meaning |", "| --- | --- |"]
        for parameter in command.params:
            option = parameter.param_type_name == "option"
            shown = ", ".join(parameter.opts) if option else (parameter.name or "").upper()
            meaning = getattr(parameter, "help", "") or ""
            lines.append(f"| `{shown}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def rules_page() -> str:
    """Every rule that reads facts for or against a bottleneck, and how they are weighed."""
    lines = ["# Rules of the diagnosis", "", "Generated from `sojourn.attribution.rules`.", ""]
    lines += [(rules.__doc__ or "").strip(), "", "## Weights", "", (scoring.__doc__ or "").strip()]
    return "\n".join(lines)


def actions_page() -> str:
    """Every action: what opens it, where its effect model comes from and where it fails."""
    lines = [
        "# Actions",
        "",
        "Generated from `sojourn.plan.actions`. An action is tried only when a verdict opens it;"
        " adding GPUs is always tried.",
        "",
        "| action | layer | opened by | wrong when | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for action in ACTIONS:
        opened = ", ".join(sorted(words(name.value) for name in action.opens_for))
        title = action.title if action.simulated else f"{action.title} (not tried by `plan`)"
        cells = (title, action.layer.value, opened, action.wrong_when, action.source)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## How actions are weighed", "", (weighing.__doc__ or "").strip()]
    return "\n".join(lines)


PAGES: Final[dict[str, Callable[[], str]]] = {
    "tables.md": tables_page,
    "configuration.md": config_page,
    "scenario.md": scenario_page,
    "command-line.md": cli_page,
    "catalogue.md": catalogue_page,
    "diagnosis-rules.md": rules_page,
    "actions.md": actions_page,
}


def write(folder: Path) -> None:
    """Write every page into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        write_atomic(folder / name, make().rstrip() + "\n")


def stale(folder: Path) -> list[str]:
    """Names of the pages that are not what the code says."""
    return [
        name
        for name, make in PAGES.items()
        if not (folder / name).is_file()
        or (folder / name).read_text(encoding="utf-8") != make().rstrip() + "\n"
    ]


def main(arguments: list[str]) -> int:
    """`FOLDER` writes, `--check FOLDER` compares; 1 when a page is stale."""
    folder = Path(arguments[-1])
    if "--check" in arguments:
        old = stale(folder)
        if old:
            sys.stderr.write(f"stale: {', '.join(old)}. Run `make docs`\n")
        return 1 if old else 0
    write(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
