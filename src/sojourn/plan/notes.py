"""What must be said beside a plan: the model's error, and thin evidence."""

from __future__ import annotations

from typing import Final

from sojourn.attribution.records import ALL
from sojourn.plan.records import Outcome
from sojourn.units import format_seconds

MODEL_ERROR: Final = 0.20
"""Baseline P99 further from the measured one than this is said as a warning."""
RETRIED: Final = 1.01
"""Attempts per request from which the retries of both runs are set side by side."""
THIN: Final = 100
"""Below so many requests one request alone is the P99."""


def notes_on(before: Outcome, measured: Outcome) -> tuple[str, ...]:
    """How far the simulated baseline is from the measured run, and what is thin."""
    notes = list(before.notes)
    if ALL in before.e2e_s and ALL in measured.e2e_s:
        model, real = before.e2e_s[ALL]["p99"].mid, measured.e2e_s[ALL]["p99"].mid
        error = model / real - 1 if real > 0 else 0.0
        text = (
            f"The simulated baseline has a P99 of {format_seconds(model)}, the measured run"
            f" {format_seconds(real)} ({error:+.0%})"
        )
        if abs(error) > MODEL_ERROR:
            text += ": read the effects as directions, not as seconds"
        if max(before.attempts_per_request, measured.attempts_per_request) > RETRIED:
            text += (
                f"; attempts per request {before.attempts_per_request:.2f} simulated,"
                f" {measured.attempts_per_request:.2f} measured"
            )
        notes.append(text)
    if before.requests < THIN:
        notes.append(
            f"{before.requests} requests are too few for a P99: its figure is nearly the maximum"
        )
    if not before.attainment:
        notes.append("Without an SLO actions are ranked by P99; set `slo` in sojourn.yaml")
    return tuple(notes)
