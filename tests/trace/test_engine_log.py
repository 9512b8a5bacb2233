"""Statistics lines of vLLM and SGLang, old and new, with every time prefix they carry."""

from __future__ import annotations

import gzip

import pytest
from tests.trace.conftest import lines, span

from sojourn.trace.reading import detect, read

NEW = (
    "(APIServer pid=1) INFO 03-19 07:08:{s:02d} [loggers.py:259] Engine 00{e}: Avg prompt"
    " throughput: 2.3 tokens/s, Avg generation throughput: 40.5 tokens/s, Running: 7 reqs,"
    " Waiting: 2 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 53.7%"
)
OLD = (
    "INFO 05-11 08:17:48 metrics.py:229] Avg prompt throughput: 102.2 tokens/s, Avg generation"
    " throughput: 2.2 tokens/s, Running: 1 reqs, Swapped: 3 reqs, Pending: 4 reqs, GPU KV cache"
    " usage: 0.8%, CPU KV cache usage: 1.0%"
)
LAUNCH = (
    "INFO 03-19 07:00:00 [core.py:1] Initializing a V1 LLM engine (v0.11.0) with config:"
    " model='org/m', max_seq_len=32768, tensor_parallel_size=2",
    "INFO 03-19 07:00:01 [kv.py:1] GPU KV cache size: 2,182,642 tokens",
    "INFO 03-19 07:00:01 [kv.py:2] Maximum concurrency for 32,768 tokens per request: 29.06x",
)


def samples(tables):
    return tables.engine_samples.to_pylist()


def test_new_vllm_lines_by_engine_with_launch_facts(write):
    text = "\n".join([*LAUNCH, *(NEW.format(s=s, e=e) for s in (10, 20) for e in (0, 1))])
    path = write("server.log", text)
    assert detect(path) == "engine_log"
    tables = read(path)
    assert [s["t_s"] for s in samples(tables)] == [0.0, 10.0, 0.0, 10.0]
    first = samples(tables)[0]
    assert (first["replica"], first["running"], first["waiting"]) == ("engine-000", 7.0, 2.0)
    assert (first["kv_usage"], first["generation_tokens_per_s"]) == (0.125, 40.5)
    assert tables.meta["engine.kv_cache_tokens"] == "2182642"
    assert tables.meta["engine.max_concurrency"] == "29.06"
    assert tables.meta["engine.max_concurrency_tokens"] == "32768"
    assert tables.meta["engine.tensor_parallel"] == "2"
    assert tables.meta["engine.model"] == "org/m"
    assert tables.aggregates.column("value").to_pylist() == [0.537] * 4
    assert tables.clock.kind == "relative"


def test_old_vllm_lines_count_swapped_as_waiting_and_preemptions(write):
    warning = (
        "WARNING 05-11 08:17:49 scheduler.py:1057] Sequence group 0 is preempted by"
        " PreemptionMode.RECOMPUTE mode because there is not enough KV cache space."
        " total_cumulative_preemption_cnt=51"
    )
    text = "\n".join([OLD, warning, OLD.replace(":48", ":53")])
    first, second = samples(read(write("s.log.gz", gzip.compress(text.encode()))))
    assert (first["waiting"], first["kv_usage"]) == (7.0, pytest.approx(0.008))
    assert (first["preemptions_total"], second["preemptions_total"]) == (None, 51.0)


def test_sglang_lines_add_up_the_prefix_cache(write):
    text = (
        "[2025-09-03 05:49:04] Prefill batch. #new-seq: 1, #new-token: 115, #cached-token: 351,"
        " token usage: 0.02, #running-req: 0, #queue-req: 4,\n"
        "[2025-09-03 05:49:05 DP1 TP0] Decode batch. #running-req: 18, #token: 501, token usage:"
        " 0.71, cuda graph: True, gen throughput (token/s): 65.75, #queue-req: 3\n"
        "[2025-09-03 05:49:06] Prefill batch. #new-seq: 1, #new-token: 10, #cached-token: 5,"
        " swa token usage: 0.9, token usage: 0.03, #running-req: 2, #queue-req: 0,\n"
    )
    tables = read(write("sg.log", text))
    found = {(s["replica"], s["t_s"]): s for s in samples(tables)}
    assert tables.clock.kind == "epoch"
    assert found["DP1", 1.0]["kv_usage"] == 0.71
    assert found["DP1", 1.0]["generation_tokens_per_s"] == 65.75
    assert found[None, 0.0]["waiting"] == 4.0
    last = found[None, 2.0]
    assert (last["prefix_hit_tokens_total"], last["prefix_query_tokens_total"]) == (356.0, 481.0)
    assert last["kv_usage"] == 0.03


def test_container_prefixes_give_a_full_time(write):
    stamped = "2026-03-19T07:08:{s:02d}.500000002Z " + NEW
    text = "\n".join(stamped.format(s=s, e=0) for s in (1, 2))
    tables = read(write("k.log", text))
    assert tables.clock.kind == "epoch"
    assert tables.clock.origin_epoch_s == pytest.approx(1_773_904_081.5)
    docker = '{{"log":"{line}\\n","stream":"stderr","time":"2026-03-19T07:08:01.5Z"}}\n'
    again = read(write("d.log", docker.format(line=NEW.format(s=1, e=0))))
    assert again.clock.origin_epoch_s == tables.clock.origin_epoch_s


def test_new_year_in_a_log_without_years(write):
    text = "\n".join(
        NEW.format(s=s, e=0).replace("03-19 07:08", day)
        for s, day in ((50, "12-31 23:59"), (0, "01-01 00:00"))
    )
    assert [s["t_s"] for s in samples(read(write("y.log", text)))] == [0.0, 10.0]


def test_a_yearless_log_joins_traces_that_it_overlaps_and_only_those(write, tmp_path):
    start = 60.0  # T0 is 2026-05-28 20:26:40 UTC
    write("a/t.jsonl", lines(*(span(f"c{i}", "chat m", start * i, start * i + 1, trace=str(i) * 32,
                                    attrs={"gen_ai.operation.name": "chat"})
                               for i in range(2))))  # fmt: skip
    write("a/e.log", NEW.format(s=10, e=0).replace("03-19 07:08", "05-28 20:27"))
    joined = read(tmp_path / "a")
    assert [s["t_s"] for s in samples(joined)] == [30.0]
    write("a/e.log", NEW.format(s=10, e=0))
    apart = read(tmp_path / "a")
    assert samples(apart) == []
    assert apart.quality.read == apart.quality.kept + apart.quality.dropped
    assert any("cannot be joined" in issue.reason for issue in apart.quality.issues)


def test_lines_without_time_or_figures_are_counted(write):
    text = "\n".join(
        [NEW.format(s=1, e=0), NEW[NEW.index("Engine") :], "INFO 03-19 07:08:09 Avg prompt"
         " throughput: x"]
    )  # fmt: skip
    tables = read(write("b.log", text))
    assert (tables.quality.read, tables.quality.kept) == (3, 1)
