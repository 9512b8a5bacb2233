"""The blocks of `sojourn calibrate`: step times with their ranges, stations, matching, drift."""

from __future__ import annotations

from sojourn.capacity.fit_drift import Drift
from sojourn.capacity.records import Fleet, StepModel
from sojourn.interval import Excuse
from sojourn.report.document import Block, TableBlock, Text
from sojourn.sim.calibrated import Calibrated
from sojourn.units import format_seconds, format_share

DRIFTED = 3
UNDECIDED = 4


def blocks(found: Calibrated) -> list[Block]:
    """The engine's step times and the stations, as fitted or taken from the hardware."""
    fleet = found.fleet
    step = fleet.engine.step
    told: list[Block] = [_steps(step), Text(text=_prompts(step))]
    if step.to_narrow:
        told.append(Text(text=f"To narrow the ranges: {step.to_narrow}."))
    if found.factors:
        turned = ", ".join(f"{name} x{factor:.3f}" for name, factor in found.factors.items())
        told.append(
            Text(
                text=f"Matched by simulating the recording: {turned}. Error of its times on calls"
                f" not turned on {format_share(found.before or 0)} before,"
                f" {format_share(found.after or 0)} after."
            )
        )
    elif found.note:
        told.append(Text(text=f"{found.note[0].upper()}{found.note[1:]}.", tone="muted"))
    return [*told, _stations(fleet)]


def _steps(step: StepModel) -> TableBlock:
    ranges = step.spread.decode if step.spread is not None else None
    low, high = step.valid_batch
    rows = tuple(
        (
            str(batch),
            format_seconds(base + step.host_s),
            "–"
            if ranges is None
            else f"{ranges[place][0] - 1:+.1%} to {ranges[place][1] - 1:+.1%}",
            f"{slope * 1e6:.4g} µs",
            "seen" if low <= batch <= high else "not seen",
        )
        for place, (batch, base, slope) in enumerate(
            zip(step.batches, step.base_s, step.slope_s_per_token, strict=True)
        )
    )
    return TableBlock(
        caption=f"Decode step by batch ({step.provenance.value}: {step.source})",
        columns=("batch", "step", "80% range", "per 1 context token", "batch"),
        rows=rows,
        align="rrrrl",
    )


def _prompts(step: StepModel) -> str:
    ranged = ""
    if step.spread is not None:
        low, high = step.spread.prefill
        ranged = f" (80% range {low - 1:+.1%} to {high - 1:+.1%})"
    mixed = step.prefill_step_s(1) - step.prefill_s_per_token
    carries = f" and {format_seconds(mixed)} per step with prompts" if mixed > 0 else ""
    return (
        f"Prefill {step.prefill_s_per_token * 1e6:.4g} µs per token{carries}{ranged}, host"
        f" {format_seconds(step.front_s)} per call; seen with batches {step.valid_batch[0]} to"
        f" {step.valid_batch[1]} and contexts {step.valid_context[0]} to {step.valid_context[1]}."
    )


def _stations(fleet: Fleet) -> TableBlock:
    rows = tuple(
        (
            item.name,
            item.stage,
            "no limit" if item.servers is None else str(item.servers),
            f"{format_seconds(item.service_s.p50)} / {format_seconds(item.service_s.p99)}",
            item.provenance.value,
            item.note,
        )
        for item in fleet.stations.values()
    )
    return TableBlock(
        caption="Stations (time of work, without waiting, P50 / P99)",
        columns=("station", "stage", "servers", "service", "source", "note"),
        rows=rows,
        align="llrrll",
    )


def fitted(record: Fleet) -> tuple[str, int]:
    """How good the fit is, in a sentence, and the exit code."""
    step = record.engine.step
    error = (
        ""
        if step.held_out_error is None
        else (f", {format_share(step.held_out_error)} median error on what was kept out of the fit")
    )
    return f"Step times {step.provenance.value}{error}; {len(record.stations)} stations.", 0


def drifted(found: Drift | Excuse) -> tuple[str, int]:
    """Whether the engine has moved from the saved fit, and the exit code: 3 if so, 4 if nothing
    can be said."""
    if isinstance(found, Excuse):
        return str(found), UNDECIDED
    return found.text, DRIFTED if found.drifted else 0


def drift(found: Drift) -> list[Block]:
    """Saved and today's fit, side by side in words."""
    return [
        TableBlock(
            caption="Saved fit and today's telemetry",
            columns=("", "step times"),
            rows=(("saved", found.saved), ("today", found.today)),
            align="ll",
        )
    ]
