"""The packaged engine recordings: client, spans, steps and events tell the same story."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import sojourn
from sojourn.trace.reading import read

FOLDER = Path(sojourn.__file__).parent / "recordings" / "engine"
RUNS = sorted(path.parent.name for path in FOLDER.glob("*/recording.yaml"))
NAMES = ("requests", "steps", "events")
BLOCK = 128

pytestmark = pytest.mark.skipif(not RUNS, reason="no engine recording is packaged yet")


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    folder = FOLDER / request.param
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in NAMES}
    return folder, yaml.safe_load((folder / "recording.yaml").read_text()), tables


def test_every_request_was_answered_as_asked_and_has_its_span(run):
    folder, facts, tables = run
    requests = tables["requests"]
    assert facts["counts"]["with_other_lengths_than_asked"] == 0
    assert set(requests.status) == {200}
    assert sorted(_span_request_ids(folder)) == sorted(requests.request_id)
    calls = read(folder).calls.to_pandas()
    assert sorted(calls.output_tokens) == sorted(requests.output_tokens)
    assert sorted(calls.input_tokens) == sorted(requests.prompt_tokens)


def _span_request_ids(folder):
    with gzip.open(folder / "spans.otlp.jsonl.gz", "rt") as lines:
        for span in (span for line in lines for span in _spans(json.loads(line))):
            values = {item["key"]: item["value"] for item in span["attributes"]}
            name = values["gen_ai.request.id"]["stringValue"]
            yield name.removeprefix("cmpl-").removesuffix("-0")


def _spans(line):
    for resource in line["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def test_steps_hold_the_tokens_that_requests_and_events_tell(run):
    _, facts, tables = run
    requests, steps, events = (tables[name] for name in NAMES)
    kinds = events.event.value_counts()
    resumed = int(kinds.get("resume", 0))
    assert kinds["arrive"] == kinds["admit"] == kinds["finish"] == len(requests)
    assert steps.preempted.sum() == kinds.get("preempt", 0) == resumed
    assert facts["totals"]["preemptions_total"]["grown"] == resumed
    # a first token, and the first after a resumption, comes out of a context chunk, unless the
    # request is preempted again before its context is complete
    generated = requests.output_tokens.sum() - len(requests) - resumed
    begun = events[events.event.isin(["admit", "resume"])]
    context = (begun.tokens - begun.computed_tokens).sum()
    if resumed:
        assert 0 <= steps.generation_tokens.sum() - generated <= resumed
        assert context * 0.98 <= steps.context_tokens.sum() <= context
    else:
        assert steps.generation_tokens.sum() == generated
        assert steps.context_tokens.sum() == context


def test_steps_are_in_order_and_do_not_overlap(run):
    steps = run[2]["steps"]
    ends = steps.step_start_s + steps.elapsed_s
    assert (steps.step_start_s.to_numpy()[1:] > ends.to_numpy()[:-1]).all()
    parts = steps.schedule_s + steps.model_s + steps.update_s
    assert np.abs(parts - steps.elapsed_s).max() < 3e-6


def test_limits_of_the_scheduler_hold(run):
    _, facts, tables = run
    steps, scheduler = tables["steps"], facts["scheduler"]
    tokens = steps.context_tokens + steps.generation_tokens
    assert tokens.max() <= scheduler["max_num_scheduled_tokens"]
    assert steps.running.max() <= scheduler["max_num_running_reqs"]
    assert steps.free_blocks.max() == scheduler["free_blocks_when_idle"]


def test_prefixes_are_shared_where_they_should_be_and_nowhere_else(run):
    _, facts, tables = run
    requests, events = tables["requests"], tables["events"]
    hits = facts["totals"]["prefix_hit_tokens_total"]["grown"]
    assert hits == requests.cached_tokens.sum()
    assert hits == events.computed_tokens[events.event == "admit"].sum()
    assert (requests.block_hashes.str.len() == requests.prompt_tokens // BLOCK).all()
    if facts["load"] != "sharing":
        assert hits == 0
        assert requests.block_hashes.explode().dropna().is_unique
        return
    known: set[int] = set()
    for row in requests.sort_values("send_s").itertuples():
        # hits cannot be more than the leading blocks that an earlier request had
        leading = np.cumprod([int(value) in known for value in row.block_hashes], dtype=int).sum()
        assert row.cached_tokens <= BLOCK * leading
        known |= {int(value) for value in row.block_hashes}
        if row.computed_block_hashes is not None:
            known |= {int(value) for value in row.computed_block_hashes}
