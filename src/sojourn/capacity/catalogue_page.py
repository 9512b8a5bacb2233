"""The catalogue as a Markdown page: every figure, and where it is from."""

from __future__ import annotations

from sojourn.capacity import catalogue, vision
from sojourn.interval import Excuse
from sojourn.units import GB, TERA


def catalogue_page() -> str:
    """The catalogue as a Markdown page: every figure, and where it is from."""
    return "\n".join([*_page_head(), *_gpu_section(), *_model_section(), *_vision_section(), ""])


def _page_head() -> list[str]:
    return [
        "# Catalogue",
        "",
        "Accelerators and models that sojourn knows by name. A model may also be the path of any"
        " Hugging Face `config.json`; an accelerator the path of a YAML file with the same fields."
        " Rates are dense peak rates; prices are indications (assumed): set"
        " `deployment.usd_per_replica_hour` to your own.",
        "",
        "Names are read as publishers write them. A card: by its chip, form and memory, in any"
        " order and with the words around them (`NVIDIA H100-SXM-80GB`, `h200_sxm`, `8x MI300X`);"
        " the first row of a chip is the one its bare name means. A model: with or without the"
        " organisation, a tuning suffix (`-Instruct`, `-it`, `-hf`) and a suffix for the weight"
        " format: `-FP8`, `-FP8-dynamic`, `-NVFP4`, `-MXFP4`, `-AWQ`, `-GPTQ-Int4`, `-w4a16`,"
        " `-w8a8` and their like give the known model in that format. What is left over must be"
        " known: an unknown name is refused, with the near ones.",
        "",
    ]


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value / TERA:,.0f}"


def _gpu_section() -> list[str]:
    lines = [
        "## Accelerators",
        "",
        "| Name | Memory GiB | Bandwidth GB/s | BF16 TFLOP/s | FP8 TFLOP/s | FP4 TFLOP/s"
        " | INT8 TOP/s | Link GB/s, one way | TDP W | USD/h (assumed) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {g.name} | {g.memory_gib:.2f} | {g.bandwidth_bytes_per_s / GB:,.0f} |"
        f" {_rate(g.bf16_flops)} | {_rate(g.fp8_flops)} | {_rate(g.fp4_flops)} |"
        f" {_rate(g.int8_ops)} | {g.link_bytes_per_s / GB:,.0f} | {g.tdp_w:.0f} |"
        f" {'–' if g.usd_per_hour is None else f'{g.usd_per_hour:.2f}'} |"
        for g in catalogue.gpus().values()
    ]
    lines += ["", "### Sources", ""]
    for g in catalogue.gpus().values():
        lines.append(f"- **{g.name}**")
        fields: dict[str, list[str]] = {}
        for field, fact in g.facts.items():
            fields.setdefault(fact.source, []).append(field)
        lines += [f"    - {', '.join(names)}: {source}" for source, names in fields.items()]
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
        also = ", ".join(catalogue.names_of(spec.name)[1:])
        lines.append(f"- **{spec.name}** ({also}): {spec.source}; {facts}")
    return [*lines, ""]


def _vision_section() -> list[str]:
    lines = [
        "## Image encoders",
        "",
        "Tokens one image adds to the prompt, by the rule of the family's image processor:"
        " separators and line ends are counted, the markers around it are not.",
        "",
        "| Model | Parameters, 1e6 | Layers x width | Patch | Rule | 640x480 | 1024x1024"
        " | 1920x1080 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for spec in catalogue.models().values():
        own = spec.vision
        if own is None:
            continue
        sizes = ((640, 480), (1024, 1024), (1920, 1080))
        counts = [vision.image_tokens(spec, *size) for size in sizes]
        shown = " | ".join("–" if isinstance(n, Excuse) else f"{n:,}" for n in counts)
        lines.append(
            f"| {spec.name} | {own.parameters / 1e6:,.0f} | {own.layers} x {own.width} |"
            f" {own.patch} | {own.rule} | {shown} |"
        )
    return lines
