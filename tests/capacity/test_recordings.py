"""The packaged recordings of a real engine: fitted on one, told for it and for its pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import yaml
from tests.capacity.engine_loop import Load, Loop

import sojourn
from sojourn.capacity import calibration, retries, stations
from sojourn.capacity.engine_calls import extract
from sojourn.capacity.records import StepModel
from sojourn.config import Config

RECORDINGS = Path(sojourn.__file__).parent / "recordings"
BEFORE = RECORDINGS / "incident" / "before"
PAIR = [RECORDINGS / "incident" / name for name in ("before", "after")]

pytestmark = pytest.mark.skipif(
    not (BEFORE / "recording.yaml").is_file(), reason="the recordings are not packaged yet"
)


def _tables(folder):
    reading = pytest.importorskip("sojourn.trace.reading", reason="the readers are not built yet")
    return reading.read(folder)


def _setting(folder):
    return yaml.safe_load((folder / "recording.yaml").read_text(encoding="utf-8"))


def _config(folder):
    engine = _setting(folder)["engine"]
    names = ("max_num_seqs", "max_num_batched_tokens", "block_size")
    return Config.from_dict({"deployment": {name: engine[name] for name in names}})


@pytest.fixture(scope="module")
def before():
    return _tables(BEFORE)


@pytest.fixture(scope="module")
def model(before):
    fitted = calibration.fit(before, _config(BEFORE))
    assert isinstance(fitted, StepModel), fitted
    return fitted


def test_the_fit_tells_calls_it_has_not_seen(model):
    # two cores shared with the client: single calls scatter by more than the model errs
    assert model.held_out_error < 0.2


@pytest.mark.parametrize("folder", PAIR, ids=lambda folder: folder.name)
def test_replayed_calls_take_as_long_as_recorded(model, folder):
    if not folder.is_dir():
        pytest.skip("not recorded")
    config, calls = _config(folder).deployment, extract(_tables(folder).calls)
    told, seen = [], []
    for replica in np.unique(calls.replica):
        mine = calls.take(calls.replica == replica)
        output = np.where(np.isfinite(mine.output), mine.output, np.nanmedian(mine.output))
        gone = np.where(mine.clean, np.inf, mine.end)
        load = Load(mine.arrival, mine.input, output, mine.cached, gone)
        ran = Loop(load, model, seqs=config.max_num_seqs, budget=config.max_num_batched_tokens)
        told.append((ran.end - mine.arrival)[mine.clean])
        seen.append((mine.end - mine.arrival)[mine.clean])
    told, seen = np.concatenate(told), np.concatenate(seen)
    assert np.mean(told) == pytest.approx(np.mean(seen), rel=0.2)
    assert np.quantile(told, 0.99) == pytest.approx(np.quantile(seen, 0.99), rel=0.2)


def test_the_retrieval_pool_and_the_retries_are_recognised(before):
    setting = _setting(BEFORE)
    _, models = stations.infer(before, Config())
    told = setting["pools"]["retrieval"]
    found = models["retrieval kb"]
    waits = before.spans.filter(pc.equal(before.spans.column("name"), "retrieval kb"))
    waited = np.nan_to_num(waits.column("wait_s").to_numpy(zero_copy_only=False)) > 0.01
    # a pool in which few had to wait need not show its limit, but never a wrong one
    assert found.servers == told["workers"] or (found.servers is None and waited.mean() < 0.05)
    levels = [factor for _start, factor in found.drift]
    calm, slow = np.quantile(levels, [0.2, 0.8])
    assert slow / calm == pytest.approx(told["slow_factor"], rel=0.2)
    # work longer than the attempt's timeout is never seen to its end
    level = found.service_s.p50 * calm
    assert level == pytest.approx(told["median_s"], rel=0.2)
    mean = told["median_s"] * np.exp(told["sigma"] ** 2 / 2)
    assert calm * np.mean(found.service_samples_s) == pytest.approx(mean, rel=0.2)
    policy, gateway = retries.detect(before, Config()), setting["gateway"]
    assert policy.attempt_timeout_s == pytest.approx(gateway["attempt_timeout_s"], rel=0.02)
    assert policy.max_attempts == gateway["max_attempts"]
    assert policy.backoff_s == pytest.approx(gateway["backoff_base_s"], rel=0.15)
