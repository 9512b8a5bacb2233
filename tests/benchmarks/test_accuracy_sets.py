"""Loaders of the open-loop sets: rows of files made here, and what cannot be read is counted."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from accuracy import reading, sets, sets_gpustack, sets_mlperf
from accuracy.rows import Arrivals

MLPERF = {
    "version": "v5.1", "division": "closed", "submitter": "Somebody", "system": "S", "model":
    "llama2-70b-99", "scenario": "Server", "valid": "VALID", "tokens_per_s": "8000",
    "samples_per_s": "40", "sched_qps": "40.5", "target_qps": "40", "lat_mean_ms": "9000",
    "lat_p50_ms": "8000", "ttft_mean_ms": "200", "tpot_mean_ms": "40", "path": "p",
    "accelerator": "NVIDIA H200-SXM-141GB", "framework": "TensorRT 10.2", "n_acc": "8",
}  # fmt: skip
GPUSTACK = {
    "file": "docs/performance-lab/m/h100.md", "hardware": "A single NVIDIA H100 SXM GPU.",
    "engines": "- vLLM: v0.11.0 - SGLang: v0.5.3", "section": "1. Engine", "block_title": "Result",
    "serve_cmd": "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64", "Successful requests": "100",
    "Benchmark duration (s)": "20", "Total input tokens": "21500",
    "Total generated tokens": "19990", "Mean TTFT (ms)": "500", "Mean TPOT (ms)": "20",
    "Peak concurrent requests": "100",
}  # fmt: skip
IOG = {
    "date": "2", "model_id": "meta-llama/Llama-3.1-8B", "gpu_name": "NVIDIA-H100-PCIe",
    "gpu_count": "1", "request_rate": "4", "completed": "200", "total_input_tokens": "43000",
    "total_output_tokens": "40000", "mean_ttft_ms": "30", "mean_tpot_ms": "9", "rep": "0",
}  # fmt: skip


def write(path, rows, head="# SOURCE: made here\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8") as stream:
        stream.write(head)
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)


def mlperf(folder, *changes):
    write(folder / "mlperf/mlperf_llm_logs_v4.1_v5.1.csv", [MLPERF | c for c in changes])
    lengths = [{"input_length": "100", "output_length": "50"},
               {"input_length": "300", "output_length": "150"}]  # fmt: skip
    write(folder / "mlperf/token_lengths/llama2-70b-99.csv", lengths)
    return sets_mlperf.mlperf(folder)


def gpustack(folder, *changes):
    rows = [GPUSTACK | {"Mean TTFT (ms)": str(500 + i)} | c for i, c in enumerate(changes)]
    write(folder / "gpustack_performance_lab_vllm_bench.csv", rows)
    return sets_gpustack.gpustack(folder)


@pytest.mark.parametrize("name", sorted(sets.OPEN))
def test_a_missing_file_is_a_reason(name, tmp_path):
    loaded = sets.OPEN[name](tmp_path)
    assert not loaded.rows
    assert any(reason.startswith("no file") for reason in loaded.left_out)


class TestMlperf:
    def test_a_server_run(self, tmp_path):
        (row,) = mlperf(tmp_path, {}).rows
        assert (row.gpu, row.deployment.weight_dtype, row.deployment.engine) == (
            "H200",
            "fp8",
            "trtllm",
        )
        assert row.load.arrivals is Arrivals.POISSON
        share = row.deployment.tensor_parallel / 8
        assert row.load.rate_per_s == pytest.approx(40.5 * share)
        assert row.measured["output_tokens_per_s"] == pytest.approx(8000 * share)
        assert row.load.outputs.mean() == pytest.approx(200, rel=0.01)  # tokens over samples
        assert row.measured["ttft_mean_s"] == pytest.approx(0.2)
        assert row.load.skip < len(row.load.inputs) // 2

    def test_offline_is_a_burst_scored_on_throughput(self, tmp_path):
        (row,) = mlperf(tmp_path, {"scenario": "Offline", "sched_qps": ""}).rows
        assert row.load.arrivals is Arrivals.BURST
        assert set(row.measured) == {"output_tokens_per_s", "requests_per_s"}

    def test_what_is_told_of_the_layout_wins(self, tmp_path):
        told = {"cfg_tp": "4", "cfg_pp": "2", "cfg_precision": "fp4", "cfg_max_batch": "300",
                "cfg_max_num_tokens": "4096", "accelerator": "NVIDIA B200-SXM-180GB"}  # fmt: skip
        (row,) = mlperf(tmp_path, told).rows
        d = row.deployment
        assert (d.tensor_parallel, d.pipeline_parallel, d.weight_dtype) == (4, 2, "nvfp4")
        assert (d.max_num_seqs, d.max_num_batched_tokens) == (300, 4096)

    def test_layouts_of_the_published_configurations_come_out(self, tmp_path):
        cards = {"NVIDIA H100-SXM-80GB": 2, "NVIDIA H200-SXM-141GB": 1}
        loaded = mlperf(tmp_path, *({"accelerator": a, "submitter": a} for a in cards))
        assert [r.deployment.tensor_parallel for r in loaded.rows] == list(cards.values())

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"division": "open"}, "open division"),
            ({"valid": "INVALID"}, "not valid"),
            ({"system": "H200_MaxQ"}, "power-limited"),
            ({"accelerator": "Unheard-of XPU"}, "card not known"),
            ({"model": "some-new-model"}, "no token lengths"),
            ({"n_acc": ""}, "not told"),
            ({"tokens_per_s": "many"}, "not told"),
            ({"scenario": "MultiStream"}, "scenario"),
        ],
    )
    def test_other_rows_are_counted(self, change, reason, tmp_path):
        loaded = mlperf(tmp_path, change)
        assert not loaded.rows
        assert any(reason in said for said in loaded.left_out)

    def test_a_run_submitted_for_two_targets_counts_once(self, tmp_path):
        loaded = mlperf(tmp_path, {}, {"model": "llama2-70b-99.9"})
        assert len(loaded.rows) == 1
        assert sum(loaded.left_out.values()) == 1


class TestGpustack:
    def test_a_burst(self, tmp_path):
        (row,) = gpustack(tmp_path, {}).rows
        assert (row.load.arrivals, len(row.load.inputs)) == (Arrivals.BURST, 100)
        assert (row.deployment.tensor_parallel, row.deployment.max_num_seqs) == (2, 64)
        assert row.deployment.engine == "vllm 0.11.0"
        assert row.load.inputs.mean() == pytest.approx(215, rel=0.01)
        assert row.load.inputs.std() > 100  # ShareGPT's shape, not its mean

    def test_equal_lengths_and_a_cap(self, tmp_path):
        change = {"Total input tokens": "102400", "Total generated tokens": "12800",
                  "Maximum request concurrency": "16"}  # fmt: skip
        (row,) = gpustack(tmp_path, change).rows
        assert (row.load.arrivals, row.load.concurrency) == (Arrivals.CLOSED, 16)
        assert set(row.load.outputs) == {128}

    def test_attention_ranks_of_sglang(self, tmp_path):
        command = "sglang.launch_server --model-path deepseek-ai/DeepSeek-V3"
        command += " --tp-size 8 --dp-size 8 --enable-dp-attention"
        (row,) = gpustack(tmp_path, {"serve_cmd": command}).rows
        d = row.deployment
        assert (d.tensor_parallel, d.data_parallel, d.weight_dtype) == (1, 8, "fp8")

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"serve_cmd": ""}, "no serving command"),
            ({"serve_cmd": "vllm serve M --speculative-config {}"}, "speculative"),
            ({"section": "SGLang"}, "another engine"),
            ({"hardware": "Ascend 910B"}, "card not known"),
            ({"Successful requests": "x"}, "not told"),
            ({"serve_cmd": "llama-server -m x"}, "engine or model"),
            ({"file": "docs/performance-lab/qwen3-32b/h100.md"}, "another model"),
            ({"Peak concurrent requests": "31"}, "a rate was offered"),
        ],
    )
    def test_other_rows_are_counted(self, change, reason, tmp_path):
        loaded = gpustack(tmp_path, change)
        assert not loaded.rows
        assert any(reason in said for said in loaded.left_out)

    def test_a_page_with_one_command_is_that_of_its_optimized_block(self, tmp_path):
        parts = [{"section": str(i)} for i in range(5)]
        best = {"section": "Best", "block_title": "Optimized benchmark result"}
        loaded = gpustack(tmp_path, *parts, best)
        assert [row.id.split()[1] for row in loaded.rows] == ["Best"]

    def test_flags(self):
        told = sets_gpustack.flags_of("x serve M -tp 8 --a=b --bare --n 5 --json '{\"k\": 1}'")
        assert told == {"tp": "8", "a": "b", "bare": "true", "n": "5", "json": '{"k": 1}'}


class TestOthers:
    def test_repeated_prompts_do_not_test_prefill(self, tmp_path):
        first, later = IOG | {"date": "1", "request_rate": "32"}, IOG
        write(tmp_path / "iog_vllm085_poisson_sharegpt200.csv", [first, later])
        cold, warm = sets.OPEN["iog"](tmp_path).rows
        assert (cold.scored, cold.load.cached) == ((), None)
        assert "ttft_mean_s" not in warm.scored
        assert (warm.load.cached <= warm.load.inputs).all()

    def test_constant_arrivals_with_answers_that_end_early(self, tmp_path):
        row = {
            "exp": "e", "model": "Qwen/Qwen2.5-7B-Instruct", "hardware": "H100", "precision":
            "FP16", "tp": "1", "stage_index": "0", "rate_rps": "2", "in_tokens_nominal": "500",
            "out_tokens_nominal": "200", "e2e_mean": "1550", "ttft_mean": "50", "itl_mean": "10",
        }  # fmt: skip
        name = "blis/blis_measured_latency_by_stage.csv"
        write(tmp_path / name, [row, row | {"stage_index": "-1"}, row | {"rate_rps": ""}])
        loaded = sets.OPEN["blis"](tmp_path)
        assert len(loaded.rows) == 1
        assert sum(loaded.left_out.values()) == 2
        (made,) = loaded.rows
        assert made.load.outputs.mean() == pytest.approx(151, rel=0.05)  # (1550 - 50) / 10 + 1
        assert np.median(made.load.outputs) == pytest.approx(200, rel=0.15)

    def test_a_pipeline_of_the_curve(self, tmp_path):
        row = {"parallel": "tp2_pp2", "machine": "4x A100 80GB PCIe", "qps": "inf", "req_s": "2",
               "out_tok_s": "400", "ttft_mean_ms": "50", "model": "m"}  # fmt: skip
        write(tmp_path / "azure_x.csv", [row, row | {"parallel": "dp2"}])
        loaded = sets.OPEN["azure"](tmp_path)
        (made,) = loaded.rows
        assert (made.deployment.pipeline_parallel, made.gpu) == (2, "A100-80GB-PCIe")
        assert made.load.arrivals is Arrivals.BURST
        assert sum(loaded.left_out.values()) == 1

    def test_recorded_requests(self, tmp_path):
        folder = tmp_path / "llmservingsim"
        times = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
        names = ("input_toks", "output_toks", *times)
        rows = [dict(zip(names, (100, 11, 5.0 + i, i, i + 0.1, i + 0.2, i + 0.3), strict=True))
                for i in range(4)]  # fmt: skip
        write(folder / "H200_Some_requests.csv", rows)
        write(folder / "Odd_Some_requests.csv", rows)
        flags = {"model": "Llama-3.1-8B", "max_num_seqs": 8, "max_num_batched_tokens": 512,
                 "tensor_parallel_size": 2}  # fmt: skip
        for name in ("H200_Some", "Odd_Some"):
            meta = {"engine_kwargs": flags, "vllm_version": "0.19.0"}
            (folder / f"{name}_meta.json").write_text(json.dumps(meta), encoding="utf-8")
        loaded = sets.OPEN["rtx"](tmp_path)
        (row,) = loaded.rows
        assert (row.gpu, row.deployment.tensor_parallel) == ("H200", 2)
        assert row.measured["itl_mean_s"] == pytest.approx(0.01)
        assert sum(loaded.left_out.values()) == 1


def test_lengths_have_the_means_asked_for():
    inputs, outputs = reading.sharegpt(200, 215.0, 198.0)
    assert inputs.mean() == pytest.approx(215, rel=0.01)
    assert outputs.mean() == pytest.approx(198, rel=0.01)
    assert min(inputs.min(), outputs.min()) >= 1
    assert np.array_equal(inputs, reading.sharegpt(200, 215.0, 198.0)[0])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100-SXM-80GB", "H100-SXM"),
        ("NVIDIA H100-NVL-94GB", "H100-NVL"),
        ("NVIDIA GH200 Grace Hopper Superchip 144GB", "GH200-144GB"),
        ("1x Standard_NC96ads_A100_v4 (4x A100 80GB PCIe)", "A100-80GB-PCIe"),
        ("AMD Instinct MI300X-NPS1-SPX-192GB-750W", "MI300X"),
        ("A single Ascend 910B NPU.", None),
    ],
)
def test_cards(text, name):
    assert reading.card(text) == name


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"a;b\n1;2\n", b"qps,x\n1,1e300\n" * 3, b"{"]
)
def test_files_of_another_shape_are_a_reason_for_every_set(content, tmp_path):
    """A cut, swapped or binary file costs its own set, never the whole table."""
    names = (
        "llmd_lmbench/a_requests.csv", "llmservingsim/a.csv", "mlperf/a.csv", "blis/a.csv",
        "iog_vllm085_poisson_sharegpt200.csv", "inference_perf_kubecon2025_llama31_8b_h100.csv",
        "gpustack_performance_lab_vllm_bench.csv", "azure_a100_vllm_llama33_70b_sharegpt200.csv",
        "step_time_anchors.csv", "kv_capacity_h100_vllm0110.csv", "splitwise_perf_model.csv",
    )  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    loaded = sets.load(tmp_path)
    assert set(loaded) == set(sets.loaders())
    assert not any(one.rows for one in loaded.values())
    assert all(one.left_out for one in loaded.values())
    assert sets.broken(loaded)
