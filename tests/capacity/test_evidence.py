"""Which evidence a fit takes, what it says of itself, and drift from a saved one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.capacity.engine_loop import Loop, calls_table, poisson_load, tables_of, truth

from sojourn.capacity import calibration
from sojourn.capacity.fit_drift import Drift, drift
from sojourn.capacity.records import EngineModel, Fleet, StepModel, fast_and_slow
from sojourn.capacity.sweep_runs import runs_of
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.trace.tables import Tables, conform, from_rows

CONFIG = Config.from_dict({"deployment": {"max_num_batched_tokens": 2048}})


def recorded(step=None, *, rate=4.0, calls=250, seed=0, **changes):
    load = poisson_load(rate, calls, seed=seed)
    ran = Loop(load, step or truth(), noise=0.03, seed=seed)
    return load, ran, calls_table(load, ran, **changes)


def samples_of(ran, load):
    """Gauges each half second."""
    times = np.arange(0.0, float(np.nanmax(ran.end)), 0.5)
    running = (
        np.searchsorted(np.sort(load.arrival), times, "right")
        - np.searchsorted(np.sort(ran.end), times, "right")
    ).astype(float)
    rows = pa.table({"t_s": times, "replica": ["0"] * len(times), "running": running})
    return conform("engine_samples", rows)


def aggregates(runs):
    """Rows as the reader of a benchmark's result files writes them."""
    rows = []
    for number, (labels, figures) in enumerate(runs):
        for (metric, statistic), value in figures.items():
            rows.append(
                {
                    "source": f"run{number}.json",
                    "metric": metric,
                    "statistic": statistic,
                    "value": value,
                    "labels": orjson.dumps(labels).decode(),
                }
            )
    return Tables(aggregates=from_rows("aggregates", rows))


FIGURES = {
    ("completed_requests", "count"): 100.0,
    ("input_tokens", "sum"): 80_000.0,
    ("output_tokens", "sum"): 15_000.0,
    ("ttft_s", "median"): 0.08,
    ("tpot_s", "mean"): 0.02,
    ("output_tokens_per_s", "mean"): 350.0,
}


class TestEvidence:
    def test_summaries_are_read_as_runs(self):
        tables = aggregates(
            [
                ({"request_rate": "inf", "max_concurrency": 8}, FIGURES),
                ({"request_rate": 2.5, "burstiness": 1.0}, FIGURES),
                ({"request_rate": "inf"}, FIGURES),
                ({"request_rate": 2.5}, {("completed_requests", "count"): 100.0}),
            ]
        )
        closed, poisson, burst = runs_of(tables, CONFIG)
        assert (closed.arrivals, closed.concurrency) == ("closed", 8)
        assert (poisson.arrivals, poisson.rate_per_s) == ("poisson", 2.5)
        assert burst.arrivals == "burst"
        assert closed.measured == {
            "ttft_p50_s": 0.08,
            "tpot_mean_s": 0.02,
            "output_tokens_per_s": 350.0,
        }
        assert closed.inputs.mean() == pytest.approx(800, rel=0.01)
        assert closed.max_num_batched_tokens == 2048

    def test_without_calls_summaries_are_fitted_and_with_calls_the_calls(self):
        asked = []

        def fit_sweep(runs, start):
            asked.append((len(runs), start))
            return truth(source="by sweeps")

        tables = aggregates([({"request_rate": "inf", "max_concurrency": 8}, FIGURES)])
        assert calibration.fit(tables, CONFIG, fit_sweep=fit_sweep).source == "by sweeps"
        assert asked == [(1, None)]
        both = replace(tables_of(recorded()[2]), aggregates=tables.aggregates)
        found = calibration.fit(both, CONFIG, fit_sweep=fit_sweep)
        assert "calls of" in found.source
        assert len(asked) == 1
        assert isinstance(calibration.fit(tables, CONFIG), Excuse)

    def test_load_that_the_calls_do_not_show_is_seen_by_the_gauges(self):
        """A third of the calls is not recorded; the engine's gauges count them."""
        load, ran, table = recorded(rate=8.0, calls=400, seed=5)
        kept = table.filter(pa.array(np.random.default_rng(0).random(400) > 0.35))
        blind = tables_of(kept)
        seeing = replace(blind, engine_samples=samples_of(ran, load))
        off = []
        for tables in (blind, seeing):
            found = calibration.fit(tables, CONFIG)
            assert isinstance(found, StepModel), found
            batch = 15
            told = [m.decode_step_s(batch, 800.0 * batch) for m in (found, truth())]
            off.append(abs(told[0] / told[1] - 1))
        assert off[1] < 0.5 * off[0]
        assert "more requests than the calls" in found.source

    def test_what_is_left_out_is_counted(self):
        _, _, table = recorded()
        other = table.slice(0, 20).append_column("pool", pa.array(["another"] * 20))
        table = table.append_column("pool", pa.array(["own"] * table.num_rows))
        found = calibration.fit(tables_of(table, other), CONFIG)
        assert "20 of other models or pools left out" in found.source


class TestClaims:
    def test_ranges_hold_the_truth_about_four_times_of_five(self):
        real, held = truth(), []
        for seed in range(12):
            found = calibration.fit(tables_of(recorded(calls=150, seed=seed)[2]), CONFIG)
            ends = fast_and_slow(found)
            for batch in (3, 8, 15):
                if not found.valid_batch[0] <= batch <= found.valid_batch[1]:
                    continue
                told = [m.decode_step_s(batch, 800.0 * batch) for m in (*ends, real)]
                held.append(told[0] <= told[2] <= told[1])
        assert len(held) > 20
        assert 0.65 <= np.mean(held) <= 0.98

    def test_it_says_what_to_record(self):
        found = calibration.fit(tables_of(recorded(rate=1.0, scheduled=False)[2]), CONFIG)
        assert "scheduled" in found.to_narrow
        assert "twice the load" in found.to_narrow
        assert found.valid_chunk[1] <= 2048


@pytest.fixture(scope="module")
def saved():
    step = calibration.fit(tables_of(recorded()[2]), CONFIG)
    return Fleet(
        engine=EngineModel(
            step=step, replicas=1, max_num_seqs=256, max_num_batched_tokens=2048, kv_blocks=9999
        )
    )


class TestDrift:
    @pytest.mark.parametrize("seed", range(1, 5))
    def test_the_same_engine_has_not_drifted(self, saved, seed):
        found = drift(tables_of(recorded(seed=seed, rate=5.0)[2]), saved, CONFIG)
        assert isinstance(found, Drift), found
        assert not found.drifted
        assert found.ratio.mid == pytest.approx(1.0, abs=0.03)

    @pytest.mark.parametrize("factor", [0.85, 1.15])
    def test_a_slower_or_faster_engine_has(self, saved, factor):
        found = drift(tables_of(recorded(truth().scaled(factor), seed=7)[2]), saved, CONFIG)
        assert found.drifted
        assert found.ratio.low <= factor <= found.ratio.high
        assert found.p_value < 0.01
        assert ("longer" if factor > 1 else "less time") in found.text

    def test_too_little_is_refused(self, saved):
        refusal = drift(tables_of(recorded(calls=10)[2]), saved, CONFIG)
        assert isinstance(refusal, Excuse)
        assert refusal.collect
