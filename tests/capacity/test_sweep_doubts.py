"""Summaries of benchmark runs that contradict themselves are left out of a fit, and told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.capacity.sweep_doubts import believed, doubt
from sojourn.capacity.sweep_runs import Arrivals, SweepRun


def summary(clients=8, **changed):
    """200 requests of 200 tokens in a closed loop, its figures in step with each other."""
    first, gap = 0.05 + 0.01 * clients, 0.012 + 0.0004 * clients
    whole = first + 199 * gap
    rate = clients / whole
    told = {
        "ttft_mean_s": first, "tpot_mean_s": gap, "e2e_mean_s": whole, "requests_per_s": rate,
        "output_tokens_per_s": 200 * rate,
    }  # fmt: skip
    lengths = np.full(200, 200)
    return SweepRun(
        arrivals=Arrivals.CLOSED,
        inputs=lengths,
        outputs=lengths,
        measured={n: v * changed.get(n, 1.0) for n, v in told.items() if changed.get(n, 1.0)},
        concurrency=clients,
        label=f"run of {clients}",
    )


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_a_run_in_step_with_itself_is_believed(clients):
    assert doubt(summary(clients)) is None
    assert doubt(summary(clients, e2e_mean_s=0)) is None
    assert doubt(summary(clients, requests_per_s=0, output_tokens_per_s=0)) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"requests_per_s": 60.0, "output_tokens_per_s": 60.0}, "in flight"),
        ({"ttft_mean_s": 1e-3, "tpot_mean_s": 1e-3, "e2e_mean_s": 1e-3}, "in flight"),
        ({"requests_per_s": 60.0}, "output tokens a second"),
        ({"output_tokens_per_s": 1e6}, "output tokens a second"),
        ({"ttft_mean_s": 1e3}, "the whole request"),
        ({"tpot_mean_s": 1e300}, "a time of"),
    ],
)
def test_minutes_for_seconds_and_their_like_are_told(changed, says):
    told = doubt(summary(**changed))
    assert told is not None
    assert says in told


def test_the_rest_of_a_sweep_is_kept():
    kept, doubts = believed([summary(1), summary(4, ttft_mean_s=1e3), summary(8)])
    assert [run.concurrency for run in kept] == [1, 8]
    assert len(doubts) == 1
    assert doubts[0].startswith("run of 4: ")


def test_runs_of_another_model_are_no_runs_of_this_engine():
    runs = [replace(summary(n), model=m) for n, m in ((1, "a"), (2, "a"), (4, "b"))]
    kept, doubts = believed(runs)
    assert [run.concurrency for run in kept] == [1, 2]
    assert "of b, the others of a" in doubts[0]
    assert believed([]) == ([], ())
