"""The fleet takes each part from the best source there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.capacity.engine_loop import Loop, calls_table, poisson_load, tables_of, truth

from sojourn.capacity import fleet
from sojourn.capacity.flags import flag
from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.interval import Excuse, Provenance
from sojourn.trace.tables import Tables, from_rows


@pytest.fixture(scope="module")
def measured():
    load = poisson_load(4.0, 150)
    return replace(
        tables_of(calls_table(load, Loop(load, truth()))),
        meta={"max_num_seqs": "64", "num_gpu_blocks": "1024", "max_num_batched_tokens": "2048.0"},
    )


def test_fit_and_printed_flags(measured):
    built = fleet.build(measured, Config())
    assert isinstance(built, Fleet)
    assert built.engine.step.provenance is Provenance.FITTED
    assert built.engine.max_num_seqs == 64
    assert built.engine.max_num_batched_tokens == 2048
    assert built.engine.kv_blocks == 1024
    assert built.engine.kv_blocks_provenance is Provenance.MEASURED
    assert built.engine.replicas == 1
    assert built.stations == {}


def test_the_file_wins_over_what_was_printed(measured):
    config = Config.from_dict({"deployment": {"max_num_seqs": 8, "kv_blocks": 77, "replicas": 3}})
    built = fleet.build(measured, config)
    assert built.engine.max_num_seqs == 8
    assert built.engine.kv_blocks == 77
    assert built.engine.replicas == 3


def test_unknown_kv_is_assumed_large_enough_and_says_so(measured):
    built = fleet.build(replace(measured, meta={}), Config())
    assert built.engine.kv_blocks_provenance is Provenance.ASSUMED
    longest = 4000 + 400
    assert built.engine.kv_blocks * built.engine.block_size >= 200 * longest


def test_lengths_alone_need_hardware():
    rows = [
        {
            "call_id": f"{i}",
            "request_id": f"{i}",
            "arrival_s": i * 0.1,
            "input_tokens": 900,
            "output_tokens": 200,
        }
        for i in range(100)
    ]
    tables = Tables(calls=from_rows("calls", rows))
    refusal = fleet.build(tables, Config())
    assert isinstance(refusal, Excuse)
    assert "accelerator" in " ".join(refusal.collect)


def lengths_alone() -> Tables:
    rows = [
        {
            "call_id": f"{i}",
            "request_id": f"{i}",
            "arrival_s": i * 0.1,
            "input_tokens": 900,
            "output_tokens": 200,
        }
        for i in range(100)
    ]
    return Tables(calls=from_rows("calls", rows))


def test_lengths_and_hardware_give_a_roofline():
    hardware = {"model": "Llama-3.1-8B", "accelerator": "B200", "tensor_parallel": 8}
    built = fleet.build(lengths_alone(), Config.from_dict({"deployment": hardware}))
    assert isinstance(built, Fleet)
    assert built.engine.step.provenance is Provenance.CATALOGUE
    assert "no fit" in built.engine.step.source
    assert built.engine.memory is not None
    assert built.engine.kv_blocks_provenance is Provenance.CATALOGUE


@pytest.mark.parametrize("text", ["many", "", "-3", "0", "nan", "inf"])
def test_flags_that_are_no_numbers_are_not_taken(text):
    tables = Tables(meta={"max_num_seqs": text})
    assert flag("max_num_seqs", tables, Config()) == (256, Provenance.ASSUMED)


def test_ranks_and_pipelined_batches_are_engines_of_their_own():
    hardware = {
        "model": "Llama-3.1-8B",
        "accelerator": "H100",
        "replicas": 3,
        "pipeline_parallel": 2,
        "data_parallel": 4,
        "max_num_seqs": 100,
        "kv_blocks": 1001,
        "usd_per_replica_hour": 16.0,
    }
    built = fleet.build(lengths_alone(), Config.from_dict({"deployment": hardware}))
    assert isinstance(built, Fleet)
    assert built.engine.replicas == 3 * 2 * 4
    assert built.engine.max_num_seqs == 50
    assert built.engine.kv_blocks == 500
    assert built.engine.usd_per_replica_hour == 2.0
