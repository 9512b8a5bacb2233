"""Loaders of the closed-loop and static sets: what they make of the published files, and of files
that are cut, shifted or full of other things."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from accuracy import predicting
from accuracy.rows import FIGURES, Arrivals, Loaded, Row
from accuracy.sets_closed import LOADERS
from accuracy.sets_closed_reading import (
    Record,
    gpu_name,
    model_name,
    prompt_flops,
    spread,
    weight_dtype,
)
from accuracy.sets_closed_serving import trtllm_maximum
from accuracy.sets_closed_silicon import FILE, layout_of, silicon

from sojourn.interval import Excuse

GROUND_TRUTH = Path(__file__).resolve().parents[3] / "shared" / "data" / "ground_truth"
needs_ground_truth = pytest.mark.skipif(
    not GROUND_TRUTH.is_dir(), reason="measured rows lie beside the checkout only"
)
FILES = {
    "silicon sample": ("inferencex/aiconfigurator_silicon_sample_flagged.csv",),
    "token position": ("inferencex/inferencex_token_position_h200.csv",),
    "SGLang cookbook": ("sglang/sgl_cookbook_bench_serving.csv",),
    "ML.ENERGY": ("mlenergy_v3_vllm0111_itl_vs_batch.csv",),
    "TensorRT-LLM maximum": ("trtllm_v1.0_perf_overview_max_throughput.csv",),
    "Splitwise": ("splitwise_perf_model.csv",),
    "Argonne": ("argonne_all_results_flagged.csv",),
    "dstack": ("dstack/dstack_llama31_405b_static_batch.csv",),
    "anchors": ("step_time_anchors.csv",),
    "KV pools": ("kv_capacity_h100_vllm0110.csv", "blis/blis_kv_blocks_and_workloads.csv"),
}
COUNTS = {
    "silicon sample": (1423, 283),
    "token position": (117, 52),
    "SGLang cookbook": (28, 1),
    "ML.ENERGY": (258, 0),
    "TensorRT-LLM maximum": (112, 0),
    "Splitwise": (150, 422),
    "Argonne": (2624, 0),
    "dstack": (74, 19),
    "anchors": (40, 15),
    "KV pools": (20, 0),
}
"""Rows, and lines left out (settings with 5 to 15 repeats are one row in Splitwise; of some anchors
two rows are made)."""
Table = tuple[list[str], list[list[str]]]


def lines(path: Path) -> Table:
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.reader(line for line in stream if not line.startswith("#")))
    return rows[0], rows[1:]


def written(path: Path, table: Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([table[0], *table[1]])


@pytest.fixture(scope="module")
def loaded() -> dict[str, Loaded]:
    return {name: load(GROUND_TRUTH) for name, load in LOADERS.items()}


def test_every_loader_has_its_files_here():
    assert set(FILES) == set(LOADERS) == set(COUNTS)


@needs_ground_truth
@pytest.mark.parametrize("name", LOADERS)
def test_every_line_is_a_row_or_counted(name, loaded):
    rows, left_out = COUNTS[name]
    assert (len(loaded[name].rows), sum(loaded[name].left_out.values())) == (rows, left_out)


@needs_ground_truth
@pytest.mark.parametrize("name", LOADERS)
def test_rows_are_as_the_border_asks(name, loaded):
    for row in loaded[name].rows:
        assert row.set == name
        assert row.measured
        assert set(row.measured) <= set(FIGURES)
        assert set(row.scored) <= set(FIGURES)
        assert all(0 < value < 1e7 for value in row.measured.values()), row.id
        load = row.load
        assert len(load.inputs) == len(load.outputs) > load.skip
        assert min(load.inputs.min(), load.outputs.min()) >= 1
        assert load.cached is None or (load.cached >= 0).all()
        assert load.cached is None or (load.cached < load.inputs).all()
        assert (load.arrivals is Arrivals.CLOSED) == (load.concurrency is not None)


@needs_ground_truth
def test_seconds_are_seconds(loaded):
    """A gap between tokens lies between 0.5 ms and 2 s, a TTFT between 5 ms and 10 min."""
    for each in loaded.values():
        for row in each.rows:
            for figure, value in row.measured.items():
                if figure.startswith(("itl", "tpot")) and not figure.endswith("p99_s"):
                    assert 5e-4 < value < 2, row.id
                elif figure.startswith("ttft"):
                    assert 5e-3 < value < 600, row.id


@needs_ground_truth
def test_servers_have_rows_to_fit_and_rows_to_score(loaded):
    """One server is one model, card, layout and dtype; most rows are of a server with others."""
    for name, each in loaded.items():
        servers: dict[str, list[Row]] = {}
        for row in each.rows:
            servers.setdefault(row.server, []).append(row)
        for server, rows in servers.items():
            if server:
                layouts = {
                    (r.group, r.deployment.tensor_parallel, r.deployment.data_parallel)
                    for r in rows
                }
                assert len(layouts) == 1, server
        if name not in ("anchors", "KV pools"):
            alone = sum(len(rows) == 1 for rows in servers.values())
            assert alone <= 0.02 * len(each.rows)


@needs_ground_truth
def test_lengths_of_the_cookbook_are_those_it_printed(loaded):
    """Drawn as the bench draws them: the sums of the page come out without being scaled."""
    drawn = [r for r in loaded["SGLang cookbook"].rows if "gpt-oss" not in r.model]
    assert not any("scaled" in note or "log-normal" in note for r in drawn for note in r.notes)
    sums = {int(r.load.inputs.sum()) for r in drawn}
    assert sums == {6101, 39668, 249831, 158939, 41941, 300020, 1273893}


@needs_ground_truth
def test_what_no_card_can_have_computed_is_not_scored_as_computed(loaded):
    """No row of the silicon sample left asks for more than 60% of the card's peak."""
    for row in loaded["silicon sample"].rows:
        whole = row.measured["ttft_mean_s"] + row.measured["tpot_mean_s"] * row.load.outputs.mean()
        share = prompt_flops(row, row.load.inputs.mean() * row.load.concurrency / whole)
        assert share is None or share < 0.6
    cached = [r for r in loaded["SGLang cookbook"].rows if r.load.cached is not None]
    assert 0 < len(cached) < 10


@needs_ground_truth
def test_one_request_waits_in_the_16_bit_rows_of_tensorrt_llm_alone(loaded):
    rows = [r for r in loaded["silicon sample"].rows if r.deployment.engine == "trtllm 1.0.0rc3"]
    less = {r.group for r in rows if r.deployment.max_num_seqs == r.load.concurrency - 1}
    all_slots = {r.group for r in rows if r.deployment.max_num_seqs == r.load.concurrency}
    assert less
    assert not less & all_slots
    assert {group.split("|")[1] for group in less} == {"bf16"}


@needs_ground_truth
@pytest.mark.parametrize("name", LOADERS)
def test_a_row_of_each_set_is_predicted(name, loaded):
    """With step times of the roofline; what it cannot do it refuses."""
    from accuracy.sources import none, roofline

    rows = loaded[name].rows
    row = min(rows, key=lambda r: int(r.load.outputs.sum()))
    told = predicting.predict(row, none if name == "KV pools" else roofline)
    assert not isinstance(told, Excuse)
    assert set(told.mid) & set(row.measured)


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_that_is_not_there_is_a_reason(name, tmp_path):
    told = LOADERS[name](tmp_path)
    assert told.rows == []
    assert all("is not there" in reason for reason in told.left_out)
    assert len(told.left_out) == len(FILES[name])


def drop_columns(table: Table, rng: random.Random) -> Table:
    kept = [i for i in range(len(table[0])) if rng.random() < 0.5]
    return [table[0][i] for i in kept], [[r[i] for i in kept] for r in table[1]]


def cut_lines(table: Table, rng: random.Random) -> Table:
    return table[0], [r[: rng.randint(0, len(r))] for r in table[1]]


def shift_cells(table: Table, rng: random.Random) -> Table:
    return table[0], [r[(n := rng.randint(1, 5)) :] + r[:n] for r in table[1]]


def wrong_types(table: Table, rng: random.Random) -> Table:
    odd = ["", "nan", "inf", "-3", "1e400", "0", "2.5", "yes", "\x00", "ünknown", "1e12", "[]"]
    return table[0], [[rng.choice(odd) if rng.random() < 0.3 else c for c in r] for r in table[1]]


def other_names(table: Table, rng: random.Random) -> Table:
    texts = [[rng.choice(["Acme-9000", "weird/model-1T"]) if not _number(c) else c for c in r]
             for r in table[1]]  # fmt: skip
    return table[0], texts


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell in ("True", "False", "")
    return True


Mutilate = Callable[[Table, random.Random], Table]


@needs_ground_truth
@pytest.mark.parametrize(
    "mutilate", [drop_columns, cut_lines, shift_cells, wrong_types, other_names]
)
@pytest.mark.parametrize("name", LOADERS)
def test_a_mutilated_file_is_counted_not_raised(name, mutilate, tmp_path):
    rng = random.Random(7)
    for file in FILES[name]:
        header, rows = lines(GROUND_TRUTH / file)
        few = rows[:: max(1, len(rows) // 60)]
        written(tmp_path / file, mutilate((header, few), rng))
    told = LOADERS[name](tmp_path)
    assert told.rows or told.left_out
    for row in told.rows:
        assert all(np.isfinite(v) and v > 0 for v in row.measured.values())
        assert len(row.load.inputs) == len(row.load.outputs)


def test_a_file_that_is_no_csv_is_a_reason(tmp_path):
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe\x00rubbish\n\x00,,,\n" + bytes(range(256)))
    told = silicon(tmp_path)
    assert told.rows == []
    assert sum(told.left_out.values()) >= 1


HEADER = (
    "id,backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,tp_size,pp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms,concurrency,"
    "is_inferencex"
)


def sample(folder: Path, *rows: str) -> Loaded:
    """The silicon sample of these lines, without the columns of flags."""
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADER, *rows]))
    return silicon(folder)


def test_unknown_models_and_cards_keep_their_names(tmp_path):
    told = sample(
        tmp_path,
        "a,vllm,1.0,acme/Model-X-FP8,acme_9000,fp8,agg,1024,1024,8,2,1,1,2,1,100,10,8,True",
    )
    (row,) = told.rows
    assert (row.model, row.gpu) == ("acme/Model-X-FP8", "acme_9000")
    assert isinstance(predicting.predict(row, lambda *_: Excuse(reason="no")), Excuse)


def test_lengths_of_inferencex_are_drawn_as_its_bench_draws_them(tmp_path):
    (row,) = sample(tmp_path, "a,vllm,1.0,m,g,fp8,agg,1024,8192,4,2,1,1,2,1,100,10,4,True").rows
    rng = np.random.RandomState(0)
    assert np.array_equal(row.load.inputs, rng.randint(819, 1025, size=40))
    assert np.array_equal(row.load.outputs, rng.randint(6553, 8193, size=40))


def test_a_tpot_far_below_that_of_fewer_clients_is_left_out(tmp_path):
    line = "{0},vllm,1.0,m,g,fp8,agg,1024,1024,{0},2,1,1,2,1,100,{1},{0},True"
    told = sample(tmp_path, line.format(4, 10), line.format(8, 9), line.format(16, 3))
    assert [r.load.concurrency for r in told.rows] == [4, 8]


def test_more_gpus_that_answer_later_test_tpot_alone(tmp_path):
    line = "{0},vllm,1.0,m,g,fp8,agg,1024,1024,8,{0},1,1,{0},1,{1},10,8,True"
    told = sample(tmp_path, line.format(2, 100), line.format(4, 80), line.format(8, 110)).rows
    assert [row.scored for row in told] == [(), (), ("tpot_mean_s",)]


def test_copies_of_inferencex_rows_without_its_flag_are_left_out(tmp_path):
    line = "a,vllm,1.0,m,g,fp8,agg,1024,1024,4,2,1,1,2,1,{},{},4,{}"
    told = sample(tmp_path, line.format("100.0", "10.0", False),
                  line.format("100.0012", "10.0004", True))  # fmt: skip
    (row,) = told.rows
    assert row.load.inputs.max() > row.load.inputs.min()
    assert sum(told.left_out.values()) == 1


def test_prompts_that_wait_for_others_are_no_test_of_ttft(tmp_path):
    line = "a,trtllm,,Llama-3.1-70B,b200_sxm,fp8,agg,1024,{0},4,{1},1,1,{1},1,100,{2},4,True"
    held, longer, whole = sample(tmp_path, line.format(1024, 2, 10), line.format(8192, 2, 10),
                                 line.format(1024, 8, 9)).rows  # fmt: skip
    assert held.scored == ("tpot_mean_s",)
    assert longer.scored == whole.scored == ()


def test_disaggregated_and_double_rows_are_left_out_by_reason(tmp_path):
    line = "a,vllm,1.0,m,g,fp8,{0},1024,1024,4,2,1,1,2,1,100,10,4,True"
    told = sample(tmp_path, line.format("agg"), line.format("agg"), line.format("disagg"))
    assert len(told.rows) == 1
    assert sorted(told.left_out.values()) == [1, 1]


@pytest.mark.parametrize(
    ("tp", "dp", "moe_tp", "moe_ep", "layout"),
    [
        ("8", "1", "8", "1", (8, 1, 1, False)),
        ("64", "1", "8", "8", (8, 1, 1, True)),  # counts both ways of cutting the experts
        ("4", "4", "1", "16", (4, 1, 1, True)),
        ("1", "16", "4", "4", (1, 1, 4, True)),
        ("1", "", "2", "1", (1, 1, 2, False)),  # a blank attention DP follows from the experts
    ],
)
def test_layouts_that_count_gpus_twice_are_read_as_one_server(tp, dp, moe_tp, moe_ep, layout):
    record = Record({"tp_size": tp, "pp_size": "1", "attention_dp_size": dp, "moe_tp_size": moe_tp,
                     "moe_ep_size": moe_ep})  # fmt: skip
    assert layout_of(record, inferencex=True) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [("TP4", (4, 1)), ("TP2,PP2", (2, 2)), ("8 GPUs TP1,PP8", (1, 8)), ("tp4 pp2", (4, 2))],
)
def test_layouts_of_the_maximum_throughput_runs(text, layout, tmp_path):
    path = tmp_path / FILES["TensorRT-LLM maximum"][0]
    path.write_text(f'model,gpu,parallel,precision,isl,osl,output_tok_s_total\n'
                    f'Llama 3.3 70B,B200,"{text}",FP4,128,128,1000\n')  # fmt: skip
    (row,) = trtllm_maximum(tmp_path).rows
    assert (row.deployment.tensor_parallel, row.deployment.pipeline_parallel) == layout
    assert len(row.load.inputs) == 30_000


@pytest.mark.parametrize(
    ("text", "name"),
    [("Qwen/Qwen3-32B", "Qwen3-32B"), ("nvidia/Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B"),
     ("nobody/knows-this", "nobody/knows-this")],
)  # fmt: skip
def test_names_of_models(text, name):
    assert model_name(text).startswith(name)


@pytest.mark.parametrize("text", ["NVIDIA B200 GPU (8x)", "b200_sxm", "B200 GPU (8x)", "B200"])
def test_names_of_cards(text):
    assert gpu_name(text) == gpu_name("B200")


@pytest.mark.parametrize(
    ("model", "told", "dtype"),
    [("Qwen/Qwen3-32B", "", "bf16"), ("Qwen/Qwen3-32B", "fp8_block", "fp8"),
     ("nvidia/Qwen3-32B-NVFP4", "", "nvfp4"), ("m", "fp4", "nvfp4"), ("m", "int4_wo", "int4"),
     ("openai/gpt-oss-120b", "fp8", "mxfp4"), ("m", "float16", "fp16")],
)  # fmt: skip
def test_weight_dtypes(model, told, dtype):
    assert weight_dtype(model, told) == dtype


def test_spread_lengths_have_the_mean_asked_for():
    drawn = spread(280.0, 1.5, 5_000, seed=1)
    assert drawn.mean() == pytest.approx(280.0, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(1.5, rel=0.2)
    assert drawn.min() >= 1
