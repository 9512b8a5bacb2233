"""The replica's schedule against a recorded engine: vLLM 0.19, one GPU, a ramp into overload.

Step times are fitted on the same run (a handful of numbers for 300 requests), so what is tested is
the schedule: who waits how long, how many run and wait at each second.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from tests.sim.making import call, engine, fleet, scenario

from sojourn.config import Config
from sojourn.sim.simulate import simulate
from sojourn.trace.tables import Tables, from_rows

calibration = pytest.importorskip("sojourn.capacity.calibration", reason="room not built yet")

FOLDER = Path(__file__).resolve().parents[2].parent / "shared/data/ground_truth/llmservingsim"
RUN = FOLDER / "RTXPRO6000_Llama-3.1-8B_requests.csv"
SECONDS = FOLDER / "RTXPRO6000_Llama-3.1-8B_timeseries_1s.csv"
SLOTS, BUDGET = 128, 2048  # max_num_seqs and max_num_batched_tokens of the run, from its meta file

pytestmark = pytest.mark.skipif(not RUN.is_file(), reason="the recorded run is not beside us")


def rows_of(path):
    with path.open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.fixture(scope="module")
def recorded():
    rows = sorted(rows_of(RUN), key=lambda row: float(row["queued_ts"]))
    times = {
        name: np.array([float(row[name]) for row in rows])
        for name in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    }
    zero = times["queued_ts"][0]
    tokens = [(int(row["input_toks"]), int(row["output_toks"])) for row in rows]
    return {name: value - zero for name, value in times.items()}, tokens


@pytest.fixture(scope="module")
def simulated(recorded):
    times, tokens = recorded
    calls = [
        {
            "call_id": str(i), "request_id": str(i), "attempt": 0, "turn": 0, "model": "m",
            "replica": "0", "input_tokens": prompt, "cached_tokens": 0, "output_tokens": output,
            "arrival_s": times["queued_ts"][i], "scheduled_s": times["scheduled_ts"][i],
            "first_token_s": times["first_token_ts"][i], "end_s": times["last_token_ts"][i],
            "ttft_origin": "server_arrival", "preemptions": 0, "status": "ok",
        }
        for i, (prompt, output) in enumerate(tokens)
    ]  # fmt: skip
    requests = [
        {"request_id": c["request_id"], "arrival_s": c["arrival_s"], "end_s": c["end_s"],
         "status": "ok", "attempts": 1}
        for c in calls
    ]  # fmt: skip
    tables = Tables.of(
        {"calls": from_rows("calls", calls), "requests": from_rows("requests", requests)}
    )
    flags = {"max_num_seqs": SLOTS, "max_num_batched_tokens": BUDGET}
    step = calibration.fit(tables, Config.from_dict({"deployment": flags}))
    the_fleet = fleet(engine(step, seqs=SLOTS, budget=BUDGET))
    return simulate(scenario(times["queued_ts"], [[call(*t)] for t in tokens], the_fleet)).tables


def test_waits_and_durations_are_those_of_the_recording(recorded, simulated):
    times, _ = recorded
    calls = simulated.calls
    for mark, name in (
        ("scheduled_s", "scheduled_ts"),
        ("first_token_s", "first_token_ts"),
        ("end_s", "last_token_ts"),
    ):
        ours = calls.column(mark).to_numpy() - calls.column("arrival_s").to_numpy()
        real = times[name] - times["queued_ts"]
        assert ours.mean() == pytest.approx(real.mean(), rel=0.05), mark
        assert np.quantile(ours, 0.99) == pytest.approx(np.quantile(real, 0.99), rel=0.05), mark


def test_running_and_waiting_follow_the_recording(simulated):
    real = rows_of(SECONDS)
    samples = simulated.engine_samples.to_pylist()
    last = min(len(real), len(samples))
    for name in ("running", "waiting"):
        ours = np.array([row[name] for row in samples[:last]])
        theirs = np.array([float(row[name]) for row in real[:last]])
        assert np.abs(ours - theirs).mean() < 0.03 * theirs.max(), name
