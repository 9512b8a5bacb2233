"""Closed loops of other tools: SGLang's cookbook, InferenceX by token position, ML.ENERGY, and
TensorRT-LLM's maximum throughput (a burst)."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from sojourn.config import Deployment

from .rows import Arrivals, Ints, Load, Loaded, Row
from .sets_closed_reading import (
    LeftOut,
    Record,
    burst_floor_s,
    collect,
    expert_layers,
    gpu_name,
    milliseconds,
    model_name,
    records,
    same,
    spread,
    uniform,
    weight_dtype,
)

COOKBOOK_MS: Final = {
    "Mean TTFT (ms)": "ttft_mean_s", "Median TTFT (ms)": "ttft_p50_s",
    "Mean TPOT (ms)": "tpot_mean_s", "Median TPOT (ms)": "tpot_p50_s",
    "Mean ITL (ms)": "itl_mean_s", "Median ITL (ms)": "itl_p50_s",
    "P99 TTFT (ms)": "ttft_p99_s", "P99 TPOT (ms)": "tpot_p99_s", "P99 ITL (ms)": "itl_p99_s",
    "Mean E2E Latency (ms)": "e2e_mean_s", "Median E2E Latency (ms)": "e2e_p50_s",
    "P90 E2E Latency (ms)": "e2e_p90_s", "P99 E2E Latency (ms)": "e2e_p99_s",
}  # fmt: skip
FIRST_SLOW: Final = 1.5
"""Mean TTFT over the median at one client: beyond, the first request compiled or warmed up."""
DECODES: Final = ("tpot_mean_s", "tpot_p50_s", "tpot_p99_s", "itl_mean_s", "itl_p50_s", "itl_p99_s")
SHAREGPT_CV: Final = (1.2, 1.0)
"""Spread of prompts and outputs of ShareGPT conversations; assumed, the sums are the file's."""


def cookbook(folder: Path) -> Loaded:
    """SGLang's cookbook: the same random lengths as its bench draws (NumPy, seed 1)."""
    loaded = Loaded()
    path = folder / "sglang" / "sgl_cookbook_bench_serving.csv"
    collect(records(path, loaded), lambda record: [_cookbook_row(record)], loaded)
    loaded.rows = [_with_cache(row, loaded.rows) for row in loaded.rows]
    return loaded


def _with_cache(row: Row, rows: list[Row]) -> Row:
    """Prompts of a run before on the same server are in its prefix cache where the figures say so.

    All clients begin at once, so 99 of 100 requests cannot have had their first token before most
    of those prompts were computed. Where P99 is below that (at 60% of the card's peak), the longest
    run before whose prompts (same seed, same texts) are the first of this one's had left them.
    """
    p99, clients = row.measured.get("ttft_p99_s"), row.load.concurrency or 1
    floor = burst_floor_s(row, row.load.inputs[:clients])
    if p99 is None or floor is None or p99 >= floor:
        return row
    inputs = row.load.inputs
    before = [
        len(other.load.inputs)
        for other in rows
        if other.server == row.server
        and len(other.load.inputs) < len(inputs)
        and np.array_equal(other.load.inputs, inputs[: len(other.load.inputs)])
    ]
    cached = np.zeros_like(inputs)
    known = max(before, default=len(inputs))
    cached[:known] = inputs[:known] - 1
    note = f"the first {known} prompts in the prefix cache: P99 TTFT is below their computing time"
    return replace(row, load=replace(row.load, cached=cached), notes=(*row.notes, note))


def _cookbook_row(record: Record) -> Row:
    _refuse_cookbook(record)
    clients = record.count("Max request concurrency")
    count = record.count("Successful requests")
    launch = record.text("launch_cmd")
    named = record.text("model_line")
    model, gpu = model_name(named), gpu_name(record.text("hardware"))
    inputs, outputs, note = cookbook_lengths(record, count)
    measured = milliseconds(record, COOKBOOK_MS)
    throughput = record.number("Output token throughput (tok/s)")
    if throughput:
        measured["output_tokens_per_s"] = throughput
    if clients == 1 and measured.get("ttft_mean_s", 0) > FIRST_SLOW * measured.get("ttft_p50_s", 1):
        for name in ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s", "output_tokens_per_s"):
            measured.pop(name, None)
        note += ("the first request warmed the engine up: means and P99 not scored",)
    if not measured:
        raise LeftOut("no figures")
    version = record.text("version")
    tp = record.count_or("tp_line", _flag(launch, "tp", "tp-size", "tensor-parallel-size") or 1)
    dp = _flag(launch, "dp", "dp-size", "data-parallel-size") or 1
    shared = "enable-dp-attention" in launch
    deployment = Deployment(
        tensor_parallel=max(1, tp // dp) if shared else tp,
        data_parallel=dp if shared else 1,
        replicas=1 if shared else dp,
        expert_parallel=bool(_flag(launch, "ep", "ep-size", "expert-parallel-size")),
        engine=f"sglang {version}".strip(),
        weight_dtype=weight_dtype(named, launch if "quantization" in launch else ""),
        max_num_seqs=max(256, clients),
    )
    return Row(
        set="SGLang cookbook",
        id=f"{record.text('file')}:{record.text('line')}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.CLOSED, inputs, outputs, concurrency=clients),
        measured=measured,
        notes=note,
        scored=DECODES if record.flag("vision") else (),
        server=f"{model}|{gpu}|{tp}|{dp}|{version}|{deployment.weight_dtype}",
    )


def _refuse_cookbook(record: Record) -> None:
    if record.flag("hardware_ambiguous"):
        raise LeftOut("several machines named, or none")
    if record.flag("copied_from_other_page"):
        raise LeftOut("the printout of another page")
    accepted = record.number("Accept length")
    if (accepted and accepted > 1) or "--speculative" in record.text("launch_cmd"):
        raise LeftOut("speculative decoding, not modelled")
    little = record.number("little_ratio")
    if little is not None and not 0.85 < little < 1.15:
        raise LeftOut("its own figures break Little's law by more than 15%")


def cookbook_lengths(record: Record, count: int) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Lengths: those the bench draws where their sum is the file's, else of the file's mean."""
    command = f"{record.text('bench_cmd')} {record.text('launch_cmd')}"
    sums = record.count("Total input tokens"), record.count("Total generated tokens")
    nominal = (
        _flag(command, "random-input-len", "random-input"),
        _flag(command, "random-output-len", "random-output"),
    )
    if nominal[0] and nominal[1]:
        rng = np.random.RandomState(1)
        inputs = uniform(1, nominal[0], count, rng=rng)
        outputs = uniform(1, nominal[1], count, rng=rng)
        if _near(inputs, sums[0], count) and _near(outputs, sums[1], count):
            return inputs, outputs, ()
        return (
            _scaled(inputs, sums[0]),
            _scaled(outputs, sums[1]),
            ("lengths drawn anew and scaled to the run's sums",),
        )
    seed = zlib.crc32(command.encode())
    return (
        spread(sums[0] / count, SHAREGPT_CV[0], count, seed=seed),
        spread(sums[1] / count, SHAREGPT_CV[1], count, seed=seed + 1),
        ("lengths assumed log-normal about the run's means",),
    )


def _near(lengths: Ints, total: int, count: int) -> bool:
    return abs(int(lengths.sum()) - total) <= count


def _scaled(lengths: Ints, total: int) -> Ints:
    scaled = np.rint(lengths * (total / int(lengths.sum())))
    return np.asarray(np.maximum(scaled, 1), dtype=np.int64)


def _flag(command: str, *names: str) -> int | None:
    """The number behind one of these options of a command line."""
    for name in names:
        found = re.search(rf"--{name}[ =](\d{{1,7}})\b", command)
        if found and int(found[1]):
            return int(found[1])
    return None


POSITION: Final = "inferencex/inferencex_token_position_h200.csv"
PARALLEL: Final = re.compile(r"^(tp|tep|dep)(\d{1,3})$")


def token_position(folder: Path) -> Loaded:
    """InferenceX by token position: fixed prompts, 128 tokens out, 10 requests a client, vLLM with
    its defaults (8,192 tokens a step, prefix cache on, no prompt repeated)."""
    loaded = Loaded()
    return collect(records(folder / POSITION, loaded), lambda r: [_position_row(r)], loaded)


def _position_row(record: Record) -> Row:
    named = record.text("model_id")
    if "glm-5" in named.casefold():
        raise LeftOut("speculative decoding of one token, and the card is not named")
    layout = PARALLEL.match(record.text("par"))
    if layout is None:
        raise LeftOut("layout not known")
    kind, ranks = layout[1], int(layout[2])
    isl, osl = record.count("isl"), record.count("osl")
    clients, count = record.count("conc"), record.count("completed")
    measured = {
        figure: record.positive(column)
        for column, figure in (
            ("median_ttft", "ttft_p50_s"), ("p99_ttft", "ttft_p99_s"),
            ("median_e2el", "e2e_p50_s"), ("p99_e2el", "e2e_p99_s"),
            ("median_tpot", "tpot_p50_s"), ("p99_tpot", "tpot_p99_s"),
            ("output_throughput", "output_tokens_per_s"),
        )
    }  # fmt: skip
    model, gpu = model_name(named), gpu_name("H200")
    deployment = Deployment(
        tensor_parallel=1 if kind == "dep" else ranks,
        data_parallel=ranks if kind == "dep" else 1,
        expert_parallel=kind != "tp",
        engine="vllm 0.16.0",
        weight_dtype=weight_dtype(named),
        max_num_seqs=1024,
    )
    return Row(
        set="token position",
        id=Path(record.text("file")).name or f"{named} {isl} {clients}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.CLOSED, same(isl, count), same(osl, count), concurrency=clients),
        measured=measured,
        notes=("vLLM nightly of February 2026", "the folder calls itself experimental"),
        server=f"{model}|{gpu}|{kind}{ranks}",
    )


ENERGY: Final = "mlenergy_v3_vllm0111_itl_vs_batch.csv"
PROMPTS: Final = {"lm-arena-chat": (280.0, 1.5), "gpqa": (250.0, 0.5),
                  "sourcegraph-fim": (1100.0, 0.8)}  # fmt: skip
"""Mean and spread of the prompts of each task, tokens. Not in the file. lm-arena: by the KV pool,
which holds 690 of 768 requests of Llama-3.1-8B (421 thousand tokens) and 898 of 1,024 of the 70B
(457 thousand): 509 to 609 tokens a request, of which about 300 are written so far. The others are
assumed: a question of GPQA Diamond with its choices; a file about the gap to be filled."""
OUTPUT_CV: Final = {"lm-arena-chat": 0.8, "gpqa": 0.6, "sourcegraph-fim": 1.0}
TURNS: Final = 12
"""Requests per batch slot: enough that filling and draining weigh little."""
BYTES_NAMED: Final = {"bfloat16": "bf16", "float16": "fp16"}


def ml_energy(folder: Path) -> Loaded:
    """ML.ENERGY v3: more requests than slots at once, so the batch is `max_num_seqs` or what the KV
    pool holds. ITL of the steady window; its mean is average batch over throughput.

    Flags from its repository (configs/vllm): 8,192 tokens a step, context 20,480, tensor parallel
    over all GPUs of a run and experts spread for MoE (which the file calls TP 1, EP n). All
    requests ask for a repetition penalty, whose cost grows with the batch and the tokens written.
    """
    loaded = Loaded()
    return collect(records(folder / ENERGY, loaded), lambda r: [_energy_row(r)], loaded)


def _energy_row(record: Record) -> Row:
    task = record.text("task")
    if task not in PROMPTS:
        raise LeftOut(f"task {task!r}: prompts of unknown length (images, video or audio)")
    named, slots = record.text("model_id"), record.count("max_num_seqs")
    model, gpu = model_name(named), gpu_name(record.text("gpu_model"))
    dp, ep = record.count_or("data_parallel", 1), record.count_or("expert_parallel", 1)
    gpus = record.count("num_gpus")
    told = record.text("weight_precision")
    measured = milliseconds(record, {"median_itl_ms": "itl_p50_s", "p99_itl_ms": "itl_p99_s"})
    measured["itl_mean_s"] = record.positive("avg_batch_size") / record.positive(
        "output_throughput_tokens_per_sec"
    )
    # The last slots of a run finish in smaller and smaller batches: a P99 needs none of them.
    count = max(256, TURNS * slots)
    seed = zlib.crc32(f"{named}|{task}".encode())
    inputs = spread(*PROMPTS[task], count, seed=seed)
    outputs = spread(record.positive("avg_output_len"), OUTPUT_CV[task], count, seed=seed + 1)
    deployment = Deployment(
        tensor_parallel=max(1, gpus // dp),
        data_parallel=dp,
        expert_parallel=ep > 1,
        engine="vllm 0.11.1",
        weight_dtype=weight_dtype(named, BYTES_NAMED.get(told, told)),
        max_num_seqs=max(1, slots // dp),
        max_num_batched_tokens=8192,
        max_model_len=20_480,
    )
    return Row(
        set="ML.ENERGY",
        id=f"{named} {task} {gpus}x{gpu} {slots}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.CLOSED, inputs, outputs, concurrency=2 * slots, skip=slots),
        measured=measured,
        notes=(f"prompts of {PROMPTS[task][0]:.0f} tokens on average assumed",
               "requests ask for a repetition penalty"),
        server=f"{model}|{gpu}|{gpus}|{dp}|{ep}|{deployment.weight_dtype}|{task}",
    )  # fmt: skip


MAXIMUM: Final = "trtllm_v1.0_perf_overview_max_throughput.csv"
REQUESTS: Final = {
    (128, 128): 30_000, (128, 2048): 3000, (128, 4096): 1500, (1000, 2000): 1500,
    (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (1000, 1000): 3000,
    (500, 2000): 3000, (20_000, 2000): 1000,
}  # fmt: skip
"""Requests of each run (TensorRT-LLM v1.0, docs/source/performance/perf-overview.md)."""
TRT_LAYOUT: Final = re.compile(r"\bTP(\d{1,2})(?:[ ,/x]*PP(\d{1,2}))?", re.IGNORECASE)


def trtllm_maximum(folder: Path) -> Loaded:
    """TensorRT-LLM's published maximum throughput: every request at once, fixed lengths. Its
    options for MoE models turn attention data parallelism on, whatever the column says (`TP8`)."""
    loaded = Loaded()
    return collect(records(folder / MAXIMUM, loaded), lambda r: [_maximum_row(r)], loaded)


def _maximum_row(record: Record) -> Row:
    isl, osl = record.count("isl"), record.count("osl")
    layout = TRT_LAYOUT.search(record.text("parallel"))
    if layout is None:
        raise LeftOut("layout not known")
    tp, pp = int(layout[1]), int(layout[2] or 1)
    named = record.text("model")
    model, gpu = model_name(named), gpu_name(record.text("gpu"))
    count = REQUESTS.get((isl, osl), 3000)
    dtype = weight_dtype(named, record.text("precision"))
    spread_out = expert_layers(model)
    deployment = Deployment(
        tensor_parallel=1 if spread_out else tp,
        pipeline_parallel=pp,
        data_parallel=tp if spread_out else 1,
        expert_parallel=spread_out,
        engine="trtllm 1.0",
        weight_dtype=dtype,
        kv_dtype="fp8",
        max_num_seqs=2048,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.95,
        prefix_caching=False,
    )
    known = (isl, osl) in REQUESTS
    return Row(
        set="TensorRT-LLM maximum",
        id=f"{named} {gpu} {record.text('parallel')} {isl}/{osl}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.BURST, same(isl, count), same(osl, count)),
        measured={"output_tokens_per_s": record.positive("output_tok_s_total")},
        notes=("batch limit 2,048 and 8,192 tokens a step assumed: its bench tunes both",)
        + (() if known else ("3,000 requests assumed",)),
        server=f"{model}|{gpu}|{tp}|{pp}|{dtype}",
    )
