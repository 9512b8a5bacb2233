"""Files and folders, clocks, the store, the cleaning, the reference page."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from tests.trace.conftest import SHARED, lines, sample, task
from tests.trace.test_columns import DETAIL, RUN
from tests.trace.test_engine_log import LAUNCH, NEW

from sojourn.config import Config
from sojourn.errors import InputError, SojournError, UnknownFormatError, UsageError
from sojourn.trace import store
from sojourn.trace.quality import clean
from sojourn.trace.readers import refused
from sojourn.trace.reading import FORMATS, read
from sojourn.trace.reference import tables_page
from sojourn.trace.schema import TABLES
from sojourn.trace.sources import Head
from sojourn.trace.tables import Clock, Quality, Tables, from_rows

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-05-28 20:26:41,10,5\n"


def reasons(tables):
    return {issue.reason: issue.count for issue in tables.quality.issues}


def test_wrong_paths_and_formats_say_what_to_do(write, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "gone")
    with pytest.raises(InputError, match="is empty"):
        read(write("empty.csv", ""))
    (tmp_path / "hollow").mkdir()
    with pytest.raises(InputError, match="holds no file"):
        read(tmp_path / "hollow")
    with pytest.raises(UsageError, match="unknown format 'x'"):
        read(write("a.csv", AZURE), format="x")
    with pytest.raises(UnknownFormatError, match="looked at its first line 'hello'") as caught:
        read(write("h.txt", "hello"))
    assert all(name in str(caught.value) for name in FORMATS)


def test_a_folder_is_read_with_its_asides_and_strangers_counted(write, tmp_path):
    write("f/a.csv", AZURE)
    write("f/deep/t.jsonl", lines(*task()))
    write("f/README.md", "# words")
    write("f/recording.yaml", "scenario: incident\nrate: 2.5\nnested: {a: 1}\n")
    write("f/stranger.txt", "hello")
    write("f/lengths.csv", "input_length,output_length\n1,2\n")
    tables = read(tmp_path / "f")
    assert tables.counts()["requests"] == 2
    assert tables.meta["scenario"] == "incident"
    assert tables.meta["rate"] == "2.5"
    assert "nested" not in tables.meta
    noted = [i.reason for i in tables.quality.issues if i.source.endswith(("txt", "md", "yaml"))]
    assert len(noted) == 3
    assert any("lengths without arrivals" in reason for reason in reasons(tables))
    arrivals = tables.requests.column("arrival_s").to_pylist()
    assert arrivals == [0.0, 1.0]


def test_a_folder_of_strangers_is_an_error(write, tmp_path):
    write("f/x.txt", "hello")
    write("f/y.txt", "world")
    with pytest.raises(InputError, match="none of 2 files"):
        read(tmp_path / "f")


def test_clocks_without_a_common_zero_are_not_joined(write, tmp_path):
    write("f/a.csv", AZURE)
    write("f/m.jsonl", json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1,
                                   "hash_ids": [0]}))  # fmt: skip
    with pytest.raises(InputError, match="clocks without a common zero"):
        read(tmp_path / "f")


def test_progress_goes_up_to_one(write):
    seen = []
    read(write("t.jsonl", lines(*task())), progress=lambda text, share: seen.append((text, share)))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(text for text, _ in seen)


def test_own_parquet_with_epoch_times_joins_the_traces(write, tmp_path):
    write("f/t.jsonl", lines(*task()))
    pq.write_table(
        pa.table({"t_s": [1_780_000_001.0, 1_780_000_002.5], "replica": ["a", "a"],
                  "running": [1.0, 2.0]}), tmp_path / "f" / "engine_samples.parquet"
    )  # fmt: skip
    tables = read(tmp_path / "f")
    assert tables.engine_samples.column("t_s").to_pylist() == [1.0, 2.5]
    assert tables.clock.origin_epoch_s == 1_780_000_000.0
    alone = read(tmp_path / "f" / "engine_samples.parquet")
    assert alone.engine_samples.column("t_s").to_pylist() == [0.0, 1.5]
    assert alone.clock.kind == "epoch"


# ibis 12 calls duckdb by a name that duckdb 2 deprecates; the call is not ours
@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
def test_the_store_gives_back_what_it_was_given(write, tmp_path):
    tables = read(write("t.jsonl", lines(*task())))
    store.save(tables, tmp_path / "s")
    for again in (store.load(tmp_path / "s"), read(tmp_path / "s")):
        for name in TABLES:
            assert again.table(name).equals(tables.table(name))
        assert again.clock == tables.clock
        assert dict(again.meta) == dict(tables.meta)
    assert store.load(tmp_path / "s").quality == tables.quality
    store.save(tables, tmp_path / "s")
    backend = store.connect(tmp_path / "s")
    assert backend.table("calls").count().to_pyarrow().as_py() == 1
    assert backend.table("spans").stage.nunique().to_pyarrow().as_py() > 3
    backend.disconnect()


def test_the_store_refuses_other_folders_and_newer_schemas(write, tmp_path):
    write("s/x.txt", "mine")
    with pytest.raises(InputError, match="no store"):
        store.save(Tables(), tmp_path / "s")
    with pytest.raises(InputError):
        store.load(tmp_path / "s")
    store.save(Tables(), tmp_path / "n")
    manifest = tmp_path / "n" / store.MANIFEST
    manifest.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(InputError, match="newer"):
        store.load(tmp_path / "n")
    (tmp_path / "n" / "calls.parquet").write_bytes(b"PAR1broken")
    manifest.write_text("{}")
    with pytest.raises(InputError, match="broken"):
        store.load(tmp_path / "n")


def test_every_aside_from_order_is_cleaned_and_counted():
    calls = [
        {"call_id": "a", "request_id": "1", "arrival_s": 0.0, "input_tokens": -5,
         "output_tokens": 10**12, "first_token_s": 5.0, "end_s": 3.0},
        {"call_id": "a", "request_id": "1", "arrival_s": 0.0},
        {"call_id": "b", "request_id": "1", "arrival_s": 1.0, "input_tokens": 10,
         "cached_tokens": 20, "output_tokens": 0},
        {"call_id": "c", "request_id": "9", "arrival_s": 1.0},
        {"call_id": None, "request_id": "1", "arrival_s": 1.0},
        {"call_id": "d", "request_id": "2", "arrival_s": float("nan")},
        {"call_id": "e", "request_id": "2", "arrival_s": 1.0, "input_tokens": 0,
         "output_tokens": 0},
    ]  # fmt: skip
    requests = [
        {"request_id": "1", "arrival_s": 5.0, "end_s": 2.0},
        {"request_id": "2", "arrival_s": 1.0, "end_s": float("inf")},
        {"request_id": "3", "arrival_s": 1e10},
    ]
    spans = [
        {"span_id": "s", "request_id": "1", "start_s": 2.0, "end_s": 1.0, "wait_s": 4.0},
        {"span_id": "w", "request_id": "1", "start_s": 2.0, "end_s": 3.0, "wait_s": -1.0},
    ]
    samples = [{"t_s": 2.0, "replica": "r", "kv_usage": 1.5}, {"t_s": 1.0, "replica": "r"}]
    rows = {"requests": requests, "calls": calls, "spans": spans, "engine_samples": samples}
    tables = Tables.of(
        {name: from_rows(name, data) for name, data in rows.items()},
        quality=Quality(read=14, kept=14),
    )
    done = clean(tables)
    found = {issue.reason: (issue.action, issue.count) for issue in done.quality.issues}
    assert found["calls: duplicate call_id"] == ("dropped", 1)
    assert found["calls: no such request_id"] == ("dropped", 1)
    assert found["calls: call_id missing"] == ("dropped", 1)
    assert found["calls: arrival_s missing"] == ("dropped", 1)
    assert found["requests: arrival_s more than a year off"] == ("dropped", 1)
    assert found["calls: negative input_tokens removed"] == ("repaired", 1)
    assert found["calls: output_tokens above 100,000,000 removed"] == ("repaired", 1)
    assert found["calls: cached_tokens above input_tokens"] == ("clamped", 1)
    assert found["calls: end_s before what it follows, removed"] == ("repaired", 1)
    assert found["requests: end before arrival, end removed"] == ("repaired", 1)
    assert found["requests.end_s is NaN or infinite: removed"] == ("repaired", 1)
    assert found["spans: end before start"] == ("clamped", 1)
    assert found["spans: negative wait_s removed"] == ("clamped", 1)
    assert found["engine_samples: kv_usage outside 0..1"] == ("clamped", 1)
    assert found["engine_samples: clock goes back, rows sorted"] == ("noted", 1)
    assert found["calls: no input and no output tokens"] == ("noted", 1)
    assert done.quality.kept == sum(done.counts().values()) == 14 - 5
    assert done.requests.column("arrival_s").to_pylist() == [1.0, 5.0]
    again = clean(done)
    assert all(again.table(name).equals(done.table(name)) for name in TABLES)


def test_clean_leaves_clean_tables_alone():
    tables = Tables(clock=Clock(kind="epoch"))
    assert clean(tables).quality == Quality()


def test_the_reference_page_lists_every_column():
    page = tables_page()
    for name, columns in TABLES.items():
        assert f"## {name}" in page
        for column in columns:
            assert f"`{column.name}`" in page
            assert column.meaning in page


# ---- mutilated input: a sentence or a counted row, never a traceback --------------------------

SAMPLES = (
    ("samples", "_constructed", "otlp_rag_vllm.jsonl"),
    ("samples", "otlp_json", "trace.json"),
    ("samples", "jaeger_json", "otlp2jaeger-out.json"),
    ("samples", "azure_like_csv", "trace.csv"),
    ("samples", "_constructed", "burstgpt_1_head.csv"),
    ("samples", "_constructed", "bailian_trace.jsonl"),
    ("samples", "envoy_ai_gateway", "access_log.jsonl"),
    ("samples", "vllm_bench_serve", "sweep_summary.json"),
    ("samples", "vllm_bench_serve", "bench_serve_all_requests_failed_v0.25.1.json"),
    ("traces", "llmservingsim", "example_trace.jsonl"),
)
DERIVED = (".engine_front", ".queue", ".prefill", ".prefill_(with_queue)", ".decode",
           ".engine_back")  # fmt: skip
SWAPS = ((b"1", b"-1"), (b"0", b"NaN"), (b'"', b""), (b":", b","), (b"{", b"["), (b"1", b"9" * 40),
         (b"null", b"{}"), (b",", b"\n"), (b"[", b"null"), (b"true", b'"x"'),
         (b"e", b"\xff\xfe"), (b"5", b"5e400"), (b"2", b"[[]]"))  # fmt: skip


def attempt(path, format_name=None):
    """Read; give the tables or None after a SojournError. Anything else fails the test."""
    try:
        tables = read(path, format=format_name)
    except SojournError as error:
        if len(str(error)) < 20:
            pytest.fail(f"{error!r} says nothing")
        return None
    assert tables.quality.read == tables.quality.kept + tables.quality.dropped
    assert tables.quality.kept >= 0
    for name, columns in TABLES.items():
        for column in columns:
            if column.required:
                assert tables.table(name).column(column.name).null_count == 0
    recorded = 0
    for row in tables.spans.to_pylist():
        assert row["end_s"] >= row["start_s"]
        recorded += not row["span_id"].endswith(DERIVED)
    if recorded:
        assert recorded == tables.quality.kept
    elif tables.counts()["requests"]:
        assert tables.counts()["requests"] == tables.quality.kept
    return tables


def own_parquet():
    rows = [{"request_id": str(i), "arrival_s": float(i)} for i in range(50)]
    sink = io.BytesIO()
    pq.write_table(from_rows("requests", rows), sink)
    return sink.getvalue()


def protobuf():
    data = TracesData()
    for service, raw in task():
        group = data.resource_spans.add()
        group.resource.attributes.add(key="service.name").value.string_value = service
        one = group.scope_spans.add().spans.add()
        one.trace_id, one.span_id = b"t" * 16, raw["spanId"].encode()[:8]
        one.parent_span_id = raw["parentSpanId"].encode()[:8]
        one.name = raw["name"]
        one.start_time_unix_nano = int(raw["startTimeUnixNano"])
        one.end_time_unix_nano = int(raw["endTimeUnixNano"])
    return data.SerializeToString()


def some_log():
    return "\n".join([*LAUNCH, *(NEW.format(s=s, e=s % 2) for s in range(10, 50))]).encode()


MADE = {
    "own.parquet": own_parquet,
    "protobuf": protobuf,
    "engine.log": some_log,
    "bench.json": lambda: json.dumps(RUN | DETAIL).encode(),
    "tasks": lambda: lines(*task(), *task("b" * 32)).encode(),
}
CUT = (("traces", "mooncake", "conversation_trace.jsonl"),
       ("traces", "agentic_sessions", "sessions.jsonl"))  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_cut_and_flipped_files_of_our_own(name, tmp_path):
    mutilate(MADE[name](), tmp_path / "x")


@pytest.mark.parametrize("parts", SAMPLES + CUT, ids=lambda parts: parts[-1])
def test_cut_and_flipped_samples(parts, tmp_path):
    mutilate(sample(*parts).read_bytes()[:24_000], tmp_path / "x")


def mutilate(data, path, seed=7):
    random = np.random.default_rng(seed)
    for cut in random.integers(1, len(data), 12):
        path.write_bytes(data[:cut])
        attempt(path)
    for _ in range(25):
        broken = bytearray(data)
        for at in random.integers(0, len(data), int(random.integers(1, 30))):
            broken[at] ^= 1 << int(random.integers(0, 8))
        path.write_bytes(bytes(broken))
        attempt(path)
    for old, new in SWAPS:
        at = [i for i in range(len(data)) if data.startswith(old, i)]
        for place in random.choice(at, min(3, len(at)), replace=False) if at else ():
            path.write_bytes(data[:place] + new + data[place + len(old) :])
            attempt(path)


@pytest.mark.parametrize("name", FORMATS)
def test_every_reader_survives_the_wrong_file(name, write):
    config_like = ("", "x", "{}", "[]", "null", "[1,2]", '{"resourceSpans":7}', "\x00\x01\x02",
                   '{"data":[{"spans":[{}]}]}', "a,b\n1,2\n", '{"request_throughput":1}',
                   '{"requests":[{}],"block_size":1}', '"text"', "\n".join(['{"a":1}'] * 3),
                   '{"timestamp":1e999,"input_length":1,"output_length":1,"hash_ids":[]}',
                   "Avg prompt throughput: 1 tokens/s, Running: 1 reqs", AZURE[:60],
                   '{"resourceSpans":[{"resource":5,"scopeSpans":[{"spans":[7,{"traceId":{}}]}]}]}',
                   '{"batches":[null,[],{"scopeSpans":[null]}]}')  # fmt: skip
    for number, content in enumerate(config_like):
        attempt(write(f"w{number}", content), name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano", "endTimeUnixNano",
     "attributes", "status", "events", "kind"]
)  # fmt: skip


@given(st.lists(st.dictionaries(KEYS, JSON), max_size=4))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_span_is_read_or_counted(tmp_path_factory, spans):
    path = tmp_path_factory.mktemp("any") / "t.json"
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    path.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
    tables = attempt(path, "otlp")
    if tables is not None:
        assert tables.quality.read == len(spans)


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")))
@settings(max_examples=300, deadline=None)
def test_sniffers_answer_for_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "sniffed"
    path.write_bytes(data)
    head = Head(path, data)
    for known in FORMATS.values():
        assert known.sniff(head) in (True, False)
    refused.name_of(head)


@pytest.mark.skipif(not (SHARED / "samples").exists(), reason="samples are not beside the checkout")
def test_every_sample_is_read_or_refused_in_a_sentence():
    for path in sorted((SHARED / "samples").rglob("*")):
        if path.is_file() and path.name != "SOURCE" and path.stat().st_size < 300_000:
            attempt(path)


def test_broken_gzip_keeps_what_came_before(write):
    import gzip

    data = gzip.compress(lines(*(item for i in range(200) for item in task(f"{i:032x}"))).encode())
    tables = attempt(write("t.jsonl.gz", data[: len(data) // 2]))
    assert tables is not None
    assert tables.counts()["requests"] > 10
    assert reasons(tables)["compressed stream broken: what follows is lost"] == 1


def test_a_config_of_columns_leaves_other_formats_alone(write):
    config = Config.from_dict({"columns": {"requests.arrival_s": "when"}})
    assert read(write("t.jsonl", lines(*task())), config=config).counts()["requests"] == 1
