"""The catalogue as a Markdown page: every figure, and where it is from."""

from __future__ import annotations

from sojourn.capacity import catalogue
from sojourn.units import GB, TERA


def catalogue_page() -> str:
    """The catalogue as a Markdown page: every figure, and where it is from."""
    return "\n".join([*_page_head(), *_gpu_section(), *_model_section(), ""])


def _page_head() -> list[str]:
    return [
        "# Catalogue",
        "",
        "Accelerators and models that sojourn knows by name. A model may also be the path of any"
        " Hugging Face `config.json`; an accelerator the path of a YAML file with the same fields."
        " Rates are dense peak rates; prices are indications (assumed): set"
        " `deployment.usd_per_replica_hour` to your own.",
        "",
    ]


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value / TERA:,.0f}"


def _gpu_section() -> list[str]:
    lines = [
        "## Accelerators",
        "",
        "| Name | Memory GiB | Bandwidth GB/s | BF16 TFLOP/s | FP8 TFLOP/s | INT8 TOP/s"
        " | Link GB/s, one way | TDP W | USD/h (assumed) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {g.name} | {g.memory_gib:.2f} | {g.bandwidth_bytes_per_s / GB:,.0f} |"
        f" {_rate(g.bf16_flops)} | {_rate(g.fp8_flops)} | {_rate(g.int8_ops)} |"
        f" {g.link_bytes_per_s / GB:,.0f} | {g.tdp_w:.0f} |"
        f" {'–' if g.usd_per_hour is None else f'{g.usd_per_hour:.2f}'} |"
        for g in catalogue.gpus().values()
    ]
    lines += ["", "### Sources", ""]
    for g in catalogue.gpus().values():
        lines.append(f"- **{g.name}**")
        lines += [f"    - {field}: {fact.source}" for field, fact in g.facts.items()]
    return [*lines, ""]


def _model_section() -> list[str]:
    lines = [
        "## Models",
        "",
        "Parameters are counted from the config and checked against the published total.",
        "",
        "| Name | Architecture | Parameters, 1e9 | published | Active, 1e9 | Layers"
        " | Attention | Checkpoint |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for spec in catalogue.models().values():
        kinds = ", ".join(
            f"{a.layers} {a.kind}{f' ({a.window})' if a.window else ''}" for a in spec.attention
        )
        published = spec.facts["parameters"].value
        lines.append(
            f"| {spec.name} | {spec.architecture} | {spec.parameters / GB:.2f} |"
            f" {published / GB:.2f} | {spec.active_parameters / GB:.2f} | {spec.layers} | {kinds} |"
            f" {spec.checkpoint_dtype} |"
        )
    lines += ["", "### Sources", ""]
    for spec in catalogue.models().values():
        facts = "; ".join(f"{field}: {fact.source}" for field, fact in spec.facts.items())
        lines.append(f"- **{spec.name}**: {spec.source}; {facts}")
    return lines
