"""CSV, JSON lines and Parquet; Mooncake, agentic sessions and benchmark results."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.trace.conftest import sample

from sojourn.config import Config
from sojourn.errors import InputError, UnknownFormatError
from sojourn.trace.readers import columns
from sojourn.trace.readers.column_layouts import Layout
from sojourn.trace.reading import detect, read


def reasons(tables):
    return {issue.reason: issue.count for issue in tables.quality.issues}


def column(tables, table, name):
    return tables.table(table).column(name).to_pylist()


@pytest.mark.parametrize(
    ("name", "count", "mean_in", "mean_out"),
    [("conv", 19_366, 1154.7, 211.1), ("code", 8_819, 2047.8, 27.9)],
)
def test_azure_gives_the_published_figures(name, count, mean_in, mean_out):
    tables = read(sample("traces", "azure_llm_2023", f"AzureLLMInferenceTrace_{name}.csv"))
    assert tables.counts()["requests"] == tables.counts()["calls"] == count
    assert tables.quality.read == tables.quality.kept == count
    assert np.mean(column(tables, "calls", "input_tokens")) == pytest.approx(mean_in, abs=0.1)
    assert np.mean(column(tables, "calls", "output_tokens")) == pytest.approx(mean_out, abs=0.1)
    arrivals = column(tables, "requests", "arrival_s")
    assert arrivals[0] == 0.0
    assert 55 * 60 < arrivals[-1] < 60 * 60
    assert tables.clock.kind == "epoch"


def test_two_files_of_one_clock_share_one_origin():
    tables = read(sample("traces", "azure_llm_2023"))
    assert tables.counts()["requests"] == 19_366 + 8_819
    arrivals = column(tables, "requests", "arrival_s")
    assert arrivals == sorted(arrivals)
    assert len(set(column(tables, "requests", "request_id"))) == len(arrivals)


def test_seven_digits_of_a_second_are_kept_to_the_microsecond(write):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    text += "2023-11-16 18:17:03.9799600,1,1\n2023-11-16 18:17:04.0000010,1,1\n"
    tables = read(write("a.csv", text))
    assert column(tables, "requests", "arrival_s") == [0.0, pytest.approx(0.020041, abs=1e-9)]


def test_burstgpt_without_an_answer_is_a_failed_request(write):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "5,s1,2.5,ChatGPT,472,18,490,Conversation log\n"
        "45,s1,0.5,GPT-4,1087,0,1087,API log\n"
    )
    tables = read(write("b.csv", text))
    assert column(tables, "requests", "arrival_s") == [0.0, 40.0]
    assert column(tables, "requests", "end_s") == [2.5, 40.5]
    assert column(tables, "requests", "status") == ["ok", "error"]
    assert column(tables, "requests", "session_id") == ["s1", "s1"]
    assert tables.clock.kind == "relative"


def test_nanoseconds_of_llmservingsim():
    tables = read(sample("traces", "llmservingsim", "example_trace.jsonl"))
    arrivals = column(tables, "requests", "arrival_s")
    assert arrivals[1] == pytest.approx((347938952 - 46926808) / 1e9)
    assert column(tables, "calls", "input_tokens")[0] == 10


@pytest.mark.parametrize(
    "name",
    ["deepseek-r1.csv", "gpt-oss.csv", "sharegpt-vicuna.csv", "swebench-lite.csv",
     "sharegpt_8k_filtered_stats_llama2_tokenizer.csv"],
)  # fmt: skip
def test_lengths_without_arrivals_are_refused(name):
    with pytest.raises(InputError, match="lengths without arrivals make no trace"):
        read(sample("traces", "sharegpt_lengths", name))


def test_servegen_is_refused_by_name():
    with pytest.raises(UnknownFormatError, match="ServeGen"):
        read(sample("traces", "servegen", "reason_deepseek-r1.tar.gz"))


def test_a_column_map_reads_a_log_of_ones_own(write):
    text = (
        "when;who;p;c;ttft_ms;took_ms;code;good\n"
        "2026-01-01T00:00:00Z;acme;100;7;250;1500;200;true\n"
        "2026-01-01T01:00:02+01:00;beta;50;3;;;504;0\n"
    )
    config = Config.from_dict(
        {"columns": {"requests.arrival_s": "when", "requests.tenant": "who",
                     "calls.input_tokens": "p", "calls.output_tokens": "c",
                     "calls.ttft_s": "ttft_ms", "requests.duration_s": "took_ms",
                     "requests.status": "code", "requests.success": "good"}}
    )  # fmt: skip
    tables = read(write("own.csv", text), config=config)
    assert column(tables, "requests", "arrival_s") == [0.0, 2.0]
    assert column(tables, "requests", "end_s") == [1.5, None]
    assert column(tables, "calls", "first_token_s") == [0.25, None]
    assert column(tables, "calls", "ttft_origin") == ["gateway", None]
    assert column(tables, "requests", "status") == ["ok", "timeout"]
    assert column(tables, "requests", "tenant") == ["acme", "beta"]
    assert column(tables, "requests", "success") == [True, False]


def test_a_wrong_map_says_what_is_there(write):
    path = write("own.csv", "a,b\n1,2\n")
    absent = Config.from_dict({"columns": {"requests.arrival_s": "x", "calls.input_tokens": "a"}})
    with pytest.raises(InputError, match="has no column 'x'; it has a, b"):
        read(path, config=absent)
    unknown = Config.from_dict({"columns": {"requests.arrival_s": "a", "calls.tokens": "b"}})
    with pytest.raises(InputError, match="no column of the tables"):
        read(path, config=unknown)


def test_known_words_and_units_of_home_made_logs(write):
    lines = [
        {"timestamp": 1_700_000_000_250, "usage": {"prompt_tokens": 10, "completion_tokens": 5},
         "latency_ms": 900, "user": "u"},
        {"timestamp": 1_700_000_001_250, "usage": {"prompt_tokens": 11, "completion_tokens": 6},
         "latency_ms": 1000, "user": "v"},
    ]  # fmt: skip
    config = Config.from_dict(
        {"columns": {"requests.arrival_s": "timestamp", "requests.duration_s": "latency_ms",
                     "calls.input_tokens": "usage.prompt_tokens"}}
    )  # fmt: skip
    path = write("log.jsonl", "\n".join(map(json.dumps, lines)))
    tables = read(path, config=config)
    assert column(tables, "requests", "end_s") == [0.9, 2.0]
    assert tables.clock.origin_epoch_s == pytest.approx(1_700_000_000.25)
    assert any("taken as ms" in reason for reason in reasons(tables))


def test_parquet_with_typed_times(write, tmp_path):
    path = tmp_path / "t.parquet"
    times = pa.array([1_700_000_000_000_001, 1_700_000_003_000_001], pa.timestamp("us", "UTC"))
    pq.write_table(
        pa.table({"arrival_time": times, "prompt_tokens": [1, 2], "output_tokens": [3, 4]}), path
    )
    tables = read(path)
    assert column(tables, "requests", "arrival_s") == [0.0, 3.0]
    assert tables.clock.kind == "epoch"


def test_engine_samples_through_a_map():
    path = sample("samples", "vllm_burstgpt_replay_with_gpu", "vllm_log_scale1000_prompt500.csv")
    config = Config.from_dict(
        {"columns": {"engine_samples.t_s": "timestamp", "engine_samples.running": "num_running",
                     "engine_samples.waiting": "num_pending",
                     "engine_samples.kv_usage": "gpu_kvcache_usage"}}
    )  # fmt: skip
    tables = read(path, config=config)
    assert tables.counts()["engine_samples"] == tables.quality.read
    assert max(column(tables, "engine_samples", "running")) == 256
    assert max(column(tables, "engine_samples", "kv_usage")) == pytest.approx(0.447, abs=5e-4)


def test_bad_rows_are_counted_one_by_one(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03,10,5\n"
        "2023-11-16 18:17:04,-10,5\n"
        "2023-11-16 18:17:05,nan,5\n"
        "2023-11-16 18:17:06,10\n"
        "not a time,10,5\n"
        "2023-11-16 18:17:02,999999999999,0\n"
        "2093-11-16 18:17:07,10,5\n"
        "2023-11-16 18:17:08,0,0\n"
    )
    tables = read(write("a.csv", text))
    found = reasons(tables)
    assert found["negative ContextTokens removed"] == 1
    assert found["ContextTokens: no finite number, removed"] == 1
    assert found["row with another number of cells"] == 1
    assert found["arrival missing or no time"] == 1
    assert found["absurd ContextTokens removed"] == 1
    assert found["arrival more than a year from the others"] == 1
    assert found["requests: clock goes back between rows, rows sorted"] == 1
    assert found["calls: no input and no output tokens"] == 1
    assert (tables.quality.read, tables.quality.kept) == (8, 5)
    assert tables.counts()["requests"] == 5


def test_duplicate_ids_keep_their_first_row(write):
    text = "request_id,arrival_s,input_tokens,output_tokens\na,1,1,1\na,2,2,2\nb,3,3,3\n"
    tables = read(write("d.csv", text))
    assert column(tables, "requests", "request_id") == ["a", "b"]
    assert reasons(tables)["duplicate request_id"] == 1
    assert (tables.quality.read, tables.quality.kept) == (3, 2)


def test_encodings(write):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,5\n"
    for data in (text.encode("utf-8-sig"), text.encode("utf-16"), text.encode()):
        assert read(write("e.csv", data)).counts()["requests"] == 1
    latin = "arrival_s,input_tokens,output_tokens,tenant\n1,2,3,caf\xe9\n".encode("latin-1")
    tables = read(write("l.csv", latin))
    assert tables.counts()["requests"] == 1
    assert reasons(tables)["bytes that are no UTF-8 replaced"] == 1


@pytest.mark.parametrize(("name", "count"), [("conversation", 12_031), ("synthetic", 3_993)])
def test_mooncake_hashes_cover_the_prompt_in_blocks_of_512(name, count):
    path = sample("traces", "mooncake", f"{name}_trace.jsonl")
    assert detect(path) == "mooncake"
    tables = read(path)
    assert tables.counts()["calls"] == tables.quality.kept == count
    blocks = [len(h) for h in column(tables, "calls", "block_hashes")]
    tokens = column(tables, "calls", "input_tokens")
    assert all(-(-n // 512) == b for n, b in zip(tokens, blocks, strict=True))
    assert set(column(tables, "calls", "block_tokens")) == {512}


def test_bailian_has_blocks_of_16_and_sessions():
    tables = read(sample("samples", "_constructed", "bailian_trace.jsonl"))
    assert set(column(tables, "calls", "block_tokens")) == {16}
    assert None not in column(tables, "requests", "session_id")


def test_hashes_beyond_63_bits_stay_distinct(write):
    lines = [
        {"timestamp": i, "input_length": 600, "output_length": 1, "hash_ids": [2**64 - 1 - i, 7]}
        for i in range(3)
    ]
    tables = read(write("m.jsonl", "\n".join(map(json.dumps, lines))))
    first = [h[0] for h in column(tables, "calls", "block_hashes")]
    assert len(set(first)) == 3


def test_agentic_sessions_keep_their_hashes_apart():
    path = sample("traces", "agentic_sessions", "sessions.jsonl")
    assert detect(path) == "agentic_sessions"
    tables = read(path)
    assert tables.quality.kept == tables.counts()["requests"] == tables.counts()["calls"] == 596
    assert len(set(column(tables, "requests", "session_id"))) == 60
    sessions = dict(
        zip(column(tables, "requests", "request_id"), column(tables, "requests", "session_id"),
            strict=True)
    )  # fmt: skip
    owner: dict[int, str] = {}
    for request, hashes in zip(
        column(tables, "calls", "request_id"), column(tables, "calls", "block_hashes"), strict=True
    ):
        for h in hashes:
            assert owner.setdefault(h, sessions[request]) == sessions[request]


RUN = {"date": "20260101-000000", "backend": "vllm", "model_id": "m", "num_prompts": 3,
       "request_rate": 2.0, "max_concurrency": None, "completed": 2, "failed": 1,
       "duration": 4.0, "request_throughput": 0.5, "mean_ttft_ms": 250.0, "p99_e2el_ms": 900.0,
       "total_input_tokens": 30, "total_output_tokens": 8}  # fmt: skip
DETAIL = {"input_lens": [10, 20, 30], "output_lens": [4, 4, 0], "ttfts": [0.2, 0.3, 0.0],
          "itls": [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], []], "errors": ["", "", "boom"],
          "start_times": [1000.5, 1001.0, 1002.0], "latencies": [0.5, 0.9, 0.0]}  # fmt: skip


def test_a_detailed_bench_run_gives_rows_and_aggregates(write):
    path = write("b.json", json.dumps(RUN | DETAIL))
    assert detect(path) == "vllm_bench"
    tables = read(path)
    assert column(tables, "requests", "arrival_s") == [0.0, 0.5, 1.5]
    assert column(tables, "requests", "end_s") == [0.5, 1.4, None]
    assert column(tables, "requests", "status") == ["ok", "ok", "error"]
    assert column(tables, "calls", "first_token_s") == [0.2, pytest.approx(0.8), None]
    assert tables.clock.kind == "monotonic"
    found = {(r["metric"], r["statistic"]): r["value"] for r in tables.aggregates.to_pylist()}
    assert found["ttft_s", "mean"] == 0.25
    assert found["e2e_s", "p99"] == 0.9
    assert found["request_rate_per_s", "mean"] == 0.5


def test_a_run_without_start_times_makes_no_rows(write):
    old = {key: value for key, value in DETAIL.items() if key not in ("start_times", "latencies")}
    tables = read(write("b.json", json.dumps(RUN | old)))
    assert tables.counts()["requests"] == 0
    assert (tables.quality.read, tables.quality.kept) == (3, 0)
    at_once = read(write("c.json", json.dumps(RUN | old | {"request_rate": "inf"})))
    assert column(at_once, "requests", "arrival_s") == [0.0, 0.0, 0.0]
    assert column(at_once, "requests", "end_s")[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("bench_serve_all_requests_failed_v0.25.1.json", 1), ("sweep_summary.json", 2),
     ("detailed_nvidia-vllm-16.0qps-Llama-3.1-405B-FP8-20241109-150547.json", 1000)],
)  # fmt: skip
def test_real_bench_files(name, rows):
    tables = read(sample("samples", "vllm_bench_serve", name))
    assert tables.quality.read == rows
    assert tables.counts()["requests"] == 0
    assert tables.counts()["aggregates"] > 10


def test_a_quote_left_open_counts_every_line_it_takes_in(write):
    rows = "".join(f"2023-11-16 18:15:{second:02d}.5000000,374,44\n" for second in range(40))
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows + '"2023-11-16,3,4\n' + rows
    tables = read(write("log.csv", text))
    assert tables.requests.num_rows == 40
    assert tables.quality.read == 81
    assert tables.quality.dropped == 41


def test_rows_longer_than_a_megabyte_and_quoted_newlines_are_whole(write):
    long = "x" * 3_000_000
    rows = "".join(f"2023-11-16 18:15:{second:02d}.5,374,44,ok\n" for second in range(40))
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens,note\n"
        + f"2023-11-16 18:14:00.5,1,2,{long}\n"
        + '2023-11-16 18:14:01.5,1,2,"two\nlines"\n'
        + rows
    )
    tables = read(write("log.csv", text))
    assert tables.requests.num_rows == 42
    assert tables.quality.dropped == 0


def test_identities_of_millions_of_rows_are_one_array():
    """Several chunks in place of one array were a traceback from three million rows on."""
    rows = 3_000_000
    data = pa.table({"ContextTokens": pa.array(np.zeros(rows, dtype=np.int64))})
    made = columns._identities(data, Layout("any", {}), "huge.csv:")
    assert isinstance(made, pa.Array)
    assert made[rows - 1].as_py() == f"huge.csv:{rows}"
