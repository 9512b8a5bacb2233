"""Every mistake in a scenario is told: which key, what was found, what to do; exit 2."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scenario.making import SMALL, STEP, built, small

from sojourn.errors import InputError, SojournError

ROOT = Path(__file__).resolve().parents[2]

MISTAKES = {
    "negative rate": (
        {"workload.arrivals.rate_per_s": -1},
        ["workload.arrivals.rate_per_s", "greater than 0", "-1"],
    ),
    "rate that is no number": ({"workload.arrivals.rate_per_s": math.nan}, ["rate_per_s", "nan"]),
    "infinite duration": ({"workload.duration_s": math.inf}, ["workload.duration_s", "inf"]),
    "duration of a wrong unit": ({"workload.duration_s": 6e7}, ["workload.duration_s", "unit"]),
    "more requests than can be": (
        {"workload.arrivals.rate_per_s": 1e6, "workload.duration_s": 1e5},
        ["workload.duration_s", "at most 20,000,000"],
    ),
    "shares": ({"workload.classes.0.share": 0.5}, ["workload", "sum to 0.75", "expected 1"]),
    "two classes of a name": (
        {"workload.classes.0.name": "agent"},
        ["two classes are called 'agent'"],
    ),
    "unknown key": (
        {"engine.max_num_seq": 3},
        ["engine.max_num_seq", "Did you mean `max_num_seqs`"],
    ),
    "another tool's word": ({"engine.gpu": "H100"}, ["engine.gpu", "Did you mean `accelerator`"]),
    "unknown distribution": (
        {"workload.classes.0.input_tokens": {"distribution": "lognorml", "mean": 3, "cv": 1}},
        ["workload.classes[0].input_tokens", "'lognorml'", "did you mean lognormal?"],
    ),
    "key below a distribution": (
        {"workload.classes.0.input_tokens.sigma": 3},
        ["workload.classes[0].input_tokens.sigma", "unknown key", "Known here: cv,"],
    ),
    "unknown station": (
        {"chain.1": {"station": "retreival"}},
        ["chain[1].station", "no station 'retreival'", "Did you mean 'retrieval'"],
    ),
    "unknown step": (
        {"chain.2": {"call": "default", "after": ["retrieva"]}},
        ["chain[2].after[0]", "no step 'retrieva'", "Did you mean 'retrieval'"],
    ),
    "unknown pool": ({"chain.2": {"call": "big"}}, ["chain[2].call", "no pool 'big'"]),
    "unknown class": (
        {"chain.1": {"station": "retrieval", "classes": ["chats"]}},
        ["chain[1].classes[0]", "Did you mean 'chat'"],
    ),
    "unknown tool": (
        {"workload.classes.1.agent.tools": {"serch": 1}},
        ["workload.classes[1].agent.tools", "no station 'serch'", "'search'"],
    ),
    "a cycle": (
        {
            "chain": [
                {"station": "gateway", "after": ["call"]},
                {"station": "retrieval", "after": ["gateway"]},
                {"call": "default", "after": ["retrieval"]},
            ]
        },
        ["chain[0].after", "gateway after call after retrieval after gateway"],
    ),
    "a step after itself": (
        {"chain": [{"call": "default", "after": ["call"]}]},
        ["chain[0].after", "call after call"],
    ),
    "an agent beside a station": (
        {"chain.2": {"call": "default", "after": ["gateway"]}, "chain.1": {
            "station": "retrieval", "after": ["gateway"]}},
        ["workload.classes[1].agent", "nothing can run beside it", "retrieval"],
    ),
    "two steps of a name": ({"chain.1": "gateway"}, ["chain[1]", "'gateway'", "name:"]),
    "station without a stage": ({"stations.search.stage": None}, ["stations.search.stage", "tool"]),
    "KV too small": (
        {"engine.kv_blocks": 10},
        ["engine.kv_blocks", "KV blocks of 16 tokens, a replica has 10", "`most:`"],
    ),
    "KV not told": ({"engine.kv_blocks": None}, ["engine.kv_blocks", "prints at its start"]),
    "longer than the model": ({"engine.max_model_len": 100}, ["engine.max_model_len", "100"]),
    "budget below the batch": (
        {"engine.max_num_batched_tokens": 63},
        ["engine.max_num_batched_tokens", "63", "64 or more"],
    ),
    "budget below the drafts": (
        {"engine.max_num_batched_tokens": 100, "engine.speculative": {"acceptance": [0.8]}},
        ["engine.max_num_batched_tokens", "128 or more"],
    ),
    "batch past the machine": (
        {"engine.max_num_seqs": 10**9, "engine.max_num_batched_tokens": 10**9},
        ["engine.max_num_seqs", "more than can be simulated"],
    ),
    "a step in milliseconds": (
        {"engine.step": {**STEP, "base_s": [2000, 10000, 20000]}},
        ["engine.step", "Check the units"],
    ),
    "unknown model": (
        {"engine": {"model": "Llama-3.1-8", "accelerator": "H100-SXM"}},
        ["engine.model", "no model 'Llama-3.1-8'", "Did you mean Llama-3.1-8B"],
    ),
    "unknown accelerator": (
        {"engine": {"model": "Llama-3.1-8B", "accelerator": "H100-SMX"}},
        ["engine.accelerator", "H100-SXM"],
    ),
    "a model that does not fit": (
        {"engine": {"model": "Llama-3.1-70B", "accelerator": "H100-SXM"}},
        ["engine", "does not fit", "tensor_parallel"],
    ),
    "no source of step times": ({"engine.step": None}, ["engine", "accelerator", "fitted"]),
    "no engine": ({"engine": None}, ["engine", "nothing serves the calls"]),
    "pools without an engine": (
        {"engine": None, "pools": {"small": {"model": "Llama-3.1-8B", "accelerator": "H100-SXM"}}},
        ["engine", "make one the `engine`", "small", "'default'"],
    ),
    "prompts by itself": (
        {"engine.prefill": {"pool": "default"}},
        ["engine.prefill.pool", "itself"],
    ),
    "prompts by nobody": ({"engine.prefill": {"pool": "fill"}}, ["engine.prefill.pool", "'fill'"]),
    "autoscaler past its end": (
        {"engine.autoscaler": {"target": 3, "least": 5, "most": 4}},
        ["engine.autoscaler.least", "5"],
    ),
    "ladder without hysteresis": (
        {"ladder": {"rungs": [{"above": 1, "below": 2}]}},
        ["ladder.rungs[0]", "below must not exceed above"],
    ),
    "ladder leaves out nothing": (
        {"ladder": {"rungs": [{"above": 1, "below": 1, "skip": ["rerank"]}]}},
        ["ladder.rungs[0].skip[0]", "no station 'rerank'"],
    ),
    "quantiles that do not end": (
        {"workload.classes.0.input_tokens": {
            "distribution": "quantiles", "quantiles": {0: 1, 0.5: 2}}},
        ["workload.classes[0].input_tokens", "end at 1"],
    ),
    "no length": ({"workload.duration_s": None}, ["workload", "duration_s, requests"]),
    "a number too small to be one": ({"stations.gateway.service_s": 1e-200}, ["service_s", "unit"]),
    "gamma without cv": ({"workload.arrivals.process": "gamma"}, ["workload.arrivals", "cv"]),
    "nothing to replay with": ({"workload.replay": "x.csv"}, ["workload", "`replay`"]),
    "hash no multiple": (
        {"engine.prefix_cache": {"tokens_per_hash": 10}},
        ["block hash covers 10", "engine.block_size"],
    ),
    "retry": ({"retry.max_attempts": 0}, ["retry.max_attempts", "greater than or equal to 1"]),
    "negative step time": (
        {"engine.step.base_s": [-1.0] * len(STEP["base_s"])},
        ["engine.step", "base_s holds a time below 0"],
    ),
    "acceptance that is no probability": (
        {"engine.speculative": {"acceptance": [0.5, 2]}},
        ["engine.speculative.acceptance[1]", "less than or equal to 1"],
    ),
    "confidence that no figure reaches": ({"confidence": 1 - 1e-16}, ["confidence", "0.9999"]),
    "think time twice": (
        {"client": {"think_s": 1, "think_samples_s": [1]}},
        ["client", "one of think_s"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_mistake_is_told(name: str) -> None:
    changes, said = MISTAKES[name]
    with pytest.raises(InputError) as told:
        built(small(**changes))
    assert told.value.exit_code == 2
    for part in said:
        assert part in str(told.value), str(told.value)


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sojourn", "simulate", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "COLUMNS": "100"},
    )  # fmt: skip


FILES = {
    "empty.yaml": b"",
    "list.yaml": b"- workload\n",
    "cut.yaml": b"workload: {arrivals: {rate_per_s: 5",
    "twice.yaml": b"workload: {}\nworkload: {}\n",
    "latin.yaml": "workload: {replay: d\xe9j\xe0}".encode("latin-1"),
    "binary.yaml": bytes(range(256)) * 4,
    "deep.yaml": b"workload: " + b"[" * 5000,
    "aliases.yaml": b"a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
    b"c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
    b"workload: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
    "no workload.yaml": b"engine: {model: Llama-3.1-8B}\n",
    "huge.yaml": b"workload: {duration_s: 1" + b"0" * 5000 + b"}\n",
    "replays nothing.yaml": b"workload: {replay: nothing.csv}\n",
    "scenario without a suffix": b"workload: {replay: nothing.csv, lod: 2}\n",
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_no_scenario_ends_with_a_message(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    result = run(tmp_path, name)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert "nothing.csv" in result.stderr or name in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--load", "2"], "workload.load"),
        (["--replicas", "2"], "engine.replicas"),
        (["--engine", "fast"], "'fast'"),
        (["--replications", "0"], "replications"),
        (["other.yaml"], "alone"),
        (["-o", "absent/report.html"], "absent"),
    ],
)
def test_options_that_do_not_go_with_a_scenario(
    options: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    result = run(tmp_path, "s.yaml", *options)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def places(value, path=()):
    """Every place in a tree of mappings and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inside:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.sampled_from(
        ["call", "default", "chat", "gateway", [], {}, [[]], {"a": 1}, [1, 2], "1e400"]
    ),
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=2), max_leaves=3),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_edits_are_drawn_or_told(data: st.DataObject) -> None:
    raw = copy.deepcopy(SMALL)
    raw["workload"]["duration_s"] = 5
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(places(raw), key=str)))
        here = raw
        for part in path[:-1]:
            here = here[part]
        match data.draw(st.sampled_from(["set", "drop", "add", "rename"])):
            case "set":
                here[path[-1]] = data.draw(ODD)
            case "drop":
                del here[path[-1]]
            case "add" if isinstance(here, dict):
                here[data.draw(st.text(max_size=6))] = data.draw(ODD)
            case _ if isinstance(here, dict):
                here[f"{path[-1]}x"] = here.pop(path[-1])
    told = None
    try:
        requests = built(raw).scenario.stream.requests.num_rows
    except SojournError as error:
        told = error
    if told is None:
        assert requests > 0
    else:
        assert told.exit_code == 2
        assert str(told).strip()
