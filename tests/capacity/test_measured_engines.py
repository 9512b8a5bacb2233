"""Fitted on one part of a real engine's calls, the model tells the other part.

The errors asserted are what was reached, rounded up; the loop that replays is this folder's own
(`engine_loop`), so these are errors of the fit and of the step model's form, not of the
simulator.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.capacity.engine_loop import Load, Loop, tables_of

from sojourn.capacity import calibration
from sojourn.config import Config

TRUTH = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "ground_truth"
RTX = TRUTH / "llmservingsim" / "RTXPRO6000_Llama-3.1-8B_requests.csv"
LMBENCH = TRUTH / "llmd_lmbench" / "exp-4_requests.csv"


def _read(path, names):
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    data = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
    whole = np.isfinite(sum(data.values()))
    return {name: values[whole] for name, values in data.items()}


def _calls(arrival, scheduled, first, end, tokens, known):
    """Calls of which only the `known` tell their tokens: the others are state, no equations."""
    n = len(arrival)
    hide = ~known
    return pa.table(
        {
            "call_id": [f"{i}" for i in range(n)],
            "request_id": [f"{i}" for i in range(n)],
            "replica": ["0"] * n,
            "input_tokens": tokens[0].astype(np.int64),
            "output_tokens": pa.array(tokens[1].astype(np.int64), mask=hide),
            "arrival_s": arrival,
            "scheduled_s": pa.array(scheduled, mask=~np.isfinite(scheduled)),
            "first_token_s": first,
            "end_s": end,
            "status": np.where(hide, "cancelled", "ok"),
        }
    )


def _config(budget, seqs):
    flags = {"max_num_batched_tokens": budget, "max_num_seqs": seqs}
    return Config.from_dict({"deployment": flags})


def _off(told, real):
    return abs(told / real - 1)


@pytest.mark.skipif(not RTX.is_file(), reason="shared ground truth is not beside the checkout")
@pytest.mark.parametrize("scheduled", [True, False])
def test_rtx_pro_6000_first_third_tells_the_rest(scheduled):
    names = "input_toks output_toks arrival_s queued_ts scheduled_ts first_token_ts last_token_ts"
    d = _read(RTX, names.split())
    origin = d["queued_ts"].min() - d["arrival_s"].min()
    begun = d["scheduled_ts"] - origin if scheduled else np.full(300, np.nan)
    first, end = d["first_token_ts"] - origin, d["last_token_ts"] - origin
    rest = np.arange(300) >= 100
    tokens = (d["input_toks"], d["output_toks"])
    table = _calls(d["arrival_s"], begun, first, end, tokens, ~rest)
    model = calibration.fit(tables_of(table), _config(2048, 128))
    ran = Loop(Load(d["arrival_s"], *tokens), model, seqs=128, budget=2048)
    seen, told = (end - d["arrival_s"])[rest], (ran.end - d["arrival_s"])[rest]
    assert _off(told.mean(), seen.mean()) < 0.03
    assert _off(np.quantile(told, 0.99), np.quantile(seen, 0.99)) < 0.03
    seen, told = (first - d["arrival_s"])[rest], (ran.first - d["arrival_s"])[rest]
    assert _off(np.median(told), np.median(seen)) < 0.03
    assert _off(np.quantile(told, 0.99), np.quantile(seen, 0.99)) < 0.05
    seen, told = (first - d["arrival_s"])[~rest], (ran.first - d["arrival_s"])[~rest]
    assert _off(np.median(told), np.median(seen)) < 0.15


@pytest.mark.slow
@pytest.mark.skipif(not LMBENCH.is_file(), reason="shared ground truth is not beside the checkout")
def test_lmbench_every_second_rate_tells_the_others():
    names = "qps prompt_tokens generation_tokens ttft launch_time finish_time"
    d = _read(LMBENCH, names.split())
    order = np.argsort(d["launch_time"])
    d = {name: values[order] for name, values in d.items()}
    origin = d["launch_time"].min()
    arrival, end = d["launch_time"] - origin, d["finish_time"] - origin
    first = arrival + d["ttft"]
    tokens = (d["prompt_tokens"], d["generation_tokens"])
    rates = np.unique(d["qps"])
    fitted = np.isin(d["qps"], rates[::2])
    nothing = np.full(int(fitted.sum()), np.nan)
    parts = [values[fitted] for values in (arrival, first, end, *tokens)]
    table = _calls(
        parts[0], nothing, parts[1], parts[2], (parts[3], parts[4]), np.ones(len(nothing), bool)
    )
    config = _config(8192, 256)
    model = calibration.fit(tables_of(table), config)
    errors = []
    for rate in rates[1::6]:
        mine = d["qps"] == rate
        load = Load(arrival[mine], tokens[0][mine], tokens[1][mine])
        ran = Loop(load, model, seqs=256, budget=8192)
        errors.append(_off((ran.end - load.arrival).mean(), (end - arrival)[mine].mean()))
    # TTFT P50 is 1% low at 5/s, 9% at 10/s, 30 to 40% from 25/s on: the calls wait up to a
    # second before a first token while nobody's decode slows down, so outside the engine's steps
    # (a term per prefill step was tried and fits to nearly nothing); one constant stands for it
    assert np.median(errors) < 0.06
    assert max(errors) < 0.12
