"""A fit to benchmark summaries gives the step model back that made them."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity.records import StepModel, fast_and_slow
from sojourn.capacity.step_turning import Turns, turned
from sojourn.capacity.sweep_runs import SweepRun
from sojourn.interval import Excuse, Provenance
from sojourn.sim.finite_runs import FiniteRun
from sojourn.sim.sweep_matching import fit_sweep

TRUTH = StepModel(
    batches=(0, 16, 64, 256),
    base_s=(0.010, 0.011, 0.016, 0.034),
    slope_s_per_token=(3e-8,) * 4,
    prefill_s_per_token=4e-5,
    prefill_s_per_token_context=1e-9,
    front_s=0.012,
    front_samples_s=tuple((0.008 + 0.004 * -np.log1p(-(np.arange(50) + 0.5) / 50)).tolist()),
    provenance=Provenance.ASSUMED,
    source="truth",
)
FIGURES = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "e2e_mean_s")
LOADS = (1, 4, 12, 32, 96)


def run_of(arrivals="closed", *, size=8, mean=(800, 150), seed=0, requests=None, figures=FIGURES):
    """A run without its figures yet: NaN marks what is to be measured."""
    rng = np.random.default_rng(seed)
    count = requests or max(30, 5 * size)
    inputs, outputs = (
        np.maximum(1, rng.uniform(0.5 * m, 1.5 * m, count)).astype(np.int64) for m in mean
    )
    return SweepRun(
        arrivals=arrivals,
        inputs=inputs,
        outputs=outputs,
        measured=dict.fromkeys(figures, float("nan")),
        concurrency=size if arrivals == "closed" else None,
        rate_per_s=float(size) if arrivals != "closed" else None,
        label=f"{arrivals} {size}",
    )


def measured(run, step=TRUTH, *, noise=0.0, seed=0):
    """The run with the figures that a step model gives, each off by some noise."""
    rng = np.random.default_rng(seed)
    told = FiniteRun(run, seed=seed + 100).figures(step)
    figures = {name: value * np.exp(rng.normal(0, noise)) for name, value in told.items()}
    return SweepRun(**{**run.__dict__, "measured": figures})


def closed(loads=LOADS, **changes):
    return [measured(run_of(size=size, seed=k), **changes) for k, size in enumerate(loads)]


def off(found, batch, context=800.0):
    return abs(
        found.decode_step_s(batch, batch * context) / TRUTH.decode_step_s(batch, batch * context)
        - 1
    )


def test_closed_loops_give_the_model_back():
    found = fit_sweep(closed())
    assert isinstance(found, StepModel), found
    for batch in (1, 8, 32):
        assert off(found, batch) < 0.04
    assert off(found, 90) < 0.1  # one prompt length: contexts and batch are not told apart
    assert found.prefill_step_s(1000) == pytest.approx(TRUTH.prefill_step_s(1000), rel=0.15)
    assert found.provenance is Provenance.FITTED
    assert found.held_out_error < 0.05
    assert found.valid_batch[0] <= 2
    assert 60 <= found.valid_batch[1] <= 96
    assert "5 benchmark runs" in found.source


def test_what_was_not_fitted_is_told():
    found = fit_sweep(closed((1, 8, 64)))
    for size in (4, 20, 40):
        run = measured(run_of(size=size, seed=size))
        told = FiniteRun(run).figures(found)
        assert told["tpot_mean_s"] == pytest.approx(run.measured["tpot_mean_s"], rel=0.04)
        assert told["e2e_mean_s"] == pytest.approx(run.measured["e2e_mean_s"], rel=0.05)


def test_poisson_rates_tell_another_rate():
    runs = [measured(run_of("poisson", size=size, requests=200, seed=size)) for size in (1, 4, 12)]
    found = fit_sweep(runs)
    run = measured(run_of("poisson", size=8, requests=200, seed=9))
    told = FiniteRun(run).figures(found)
    assert told["tpot_mean_s"] == pytest.approx(run.measured["tpot_mean_s"], rel=0.05)
    assert told["ttft_p50_s"] == pytest.approx(run.measured["ttft_p50_s"], rel=0.12)


def test_few_runs_stay_near_the_hardware_they_start_at():
    """One run of one load: its gap is met, and what it does not tell is the start's shape."""
    slow = turned(TRUTH, Turns((0,), 0.2, (0.2,), 0.2, 0.2, 0.0))
    found = fit_sweep(closed((8,)), slow)
    told = FiniteRun(closed((8,))[0]).figures(found)
    assert told["tpot_mean_s"] == pytest.approx(closed((8,))[0].measured["tpot_mean_s"], rel=0.03)
    assert off(found, 64) < off(slow, 64)
    assert "second run" in found.to_narrow


def test_beyond_the_batches_seen_the_hardwares_shape_holds():
    """Runs up to 8 clients, a hardware model with a bend at 64: it is kept, and said."""
    slow = turned(TRUTH, Turns((0,), 0.15, (0.15,), 0.15, 0.15, 0.0))
    with_it = fit_sweep(closed((1, 3, 8)), slow)
    without = fit_sweep(closed((1, 3, 8)))
    assert off(with_it, 200) < 0.15
    assert off(with_it, 200) < off(without, 200)
    assert "by the shape of" in with_it.source


def test_ranges_hold_the_truth_four_times_of_five():
    """80% ranges over noisy sweeps: of the steps at batches met, some 80% hold the truth."""
    held = []
    for seed in range(8):
        found = fit_sweep(closed((1, 6, 24), noise=0.03, seed=seed))
        fast, slow = fast_and_slow(found)
        for batch in (2, 8, 20):
            real = TRUTH.decode_step_s(batch, 800.0 * batch)
            ends = [step.decode_step_s(batch, 800.0 * batch) for step in (fast, slow)]
            held.append(ends[0] <= real <= ends[1])
    assert 0.65 <= np.mean(held) <= 1.0


def test_a_run_that_went_wrong_moves_little():
    runs = closed()
    wrong = {name: 3 * value for name, value in runs[2].measured.items()}
    broken = SweepRun(**{**runs[2].__dict__, "measured": wrong})
    found = fit_sweep([*runs[:2], broken, *runs[3:]])
    for run in (runs[0], runs[4]):
        told = FiniteRun(run).figures(found)["tpot_mean_s"]
        assert told == pytest.approx(run.measured["tpot_mean_s"], rel=0.1)


@pytest.mark.parametrize("names", [("ttft_p50_s", "tpot_p50_s"), ("e2e_mean_s",), ("itl_mean_s",)])
def test_any_figures_will_do(names):
    """What a figure tells at some loads it tells at another."""
    found = fit_sweep([measured(run_of(size=s, seed=s, figures=names)) for s in (1, 8, 40)])
    assert isinstance(found, StepModel), found
    run = measured(run_of(size=20, seed=4, figures=names))
    told = FiniteRun(run).figures(found)
    assert told[names[-1]] == pytest.approx(run.measured[names[-1]], rel=0.1)


def test_equal_calls_give_equal_fits():
    assert fit_sweep(closed((1, 8))) == fit_sweep(closed((1, 8)))


def test_nothing_to_fit_is_refused():
    assert isinstance(fit_sweep([]), Excuse)
    empty = run_of(figures=("itl_p99_s",))
    empty.measured["itl_p99_s"] = 0.1
    refusal = fit_sweep([empty])
    assert isinstance(refusal, Excuse)
    assert refusal.collect
