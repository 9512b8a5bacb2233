"""aiconfigurator's sample of serving runs in a closed loop, InferenceX runs among them.

Facts of the runs, from the scripts that made them (SemiAnalysisAI/InferenceX, `benchmarks/` and
`utils/bench_serving/benchmark_serving.py`): 10 requests a client, all clients begin at once behind
a warm-up that is not counted; lengths drawn from 80% to 100% of the nominal (seed 0: the same
here); no prefix cache; vLLM with `max-num-batched-tokens` 8192 and `max-num-seqs` equal to the
clients on Hopper, 512 on Blackwell; TensorRT-LLM with 16,384 tokens a step (20,000 for gpt-oss)
and an fp8 KV cache.
The other rows were launched by aiconfigurator's own generator (`src/aiconfigurator/generator`):
fixed lengths, 2 requests a client to warm up, a token budget of batch + prompt + 500, and no cut
prompts under TensorRT-LLM; SGLang mixes prompts with decodes from some version on (0.5.6 does by
its figures, 0.5.1 not). Its bench has sent 10, later 50 requests a client: 10 fits these rows.
Whether a figure is a mean is not said; InferenceX rows of H100 bear it out (TTFT within 5%).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from sojourn.config import Deployment

from .rows import Arrivals, Ints, Load, Loaded, Row
from .sets_closed_checks import Run, cached, fallen, held_back, one_slot_less, unhurried
from .sets_closed_reading import (
    LeftOut,
    Record,
    collect,
    gpu_name,
    milliseconds,
    model_name,
    records,
    same,
    uniform,
    weight_dtype,
)

FILE: Final = "inferencex/aiconfigurator_silicon_sample_flagged.csv"
SET: Final = "silicon sample"
REQUESTS_PER_CLIENT: Final = 10
RANGE_RATIO: Final = 0.8
NODE: Final = 8
"""GPUs of one server; an InferenceX row of one engine on more counts something twice."""
REPEATS_AGREE: Final = 1.25
BLACKWELL: Final = ("B200", "B300", "GB200", "GB300")
HELD: Final = "prompts are held back up to 20 steps (batch_wait_timeout_iters): TTFT not scored"
GENERATED_MIXED: Final = (0, 5, 6)
"""SGLang from this version on ran with --enable-mixed-chunk where the generator launched it."""
ROOM: Final = 500
"""Tokens of a step beyond batch and prompt. The generator has had 500 and 1,500; with 1,500 two
prompts of 1,024 tokens share a step, and told TTFT of those rows is half too long."""
MIXED: Final = "python -m sglang.launch_server --model-path {} --tp {} --enable-mixed-chunk"


Layout = tuple[int, int, int, bool]
"""TP, PP, attention DP, whether experts are spread."""


def silicon(folder: Path) -> Loaded:
    """Every row of one engine (prompts and decodes in one pool)."""
    loaded = Loaded()
    runs: dict[tuple[object, ...], Run] = {}

    def build(record: Record) -> list[Row]:
        row = _row(record)
        run = Run(row, record.count("isl"), record.count("osl"))
        figures = [(name, round(value * 1e3, 2)) for name, value in row.measured.items()]
        key = (row.model, row.gpu, row.load.concurrency, *run[1:], *figures)
        if key in runs:
            raise LeftOut("the same figures as another row")
        runs[key] = run
        return []

    # InferenceX rows first: copies of them, in hundredths of a ms, lack its flag.
    lines = sorted(records(folder / FILE, loaded), key=lambda r: not r.flag("is_inferencex"))
    collect(lines, build, loaded)
    left = list(runs.values())
    for reason, bad in (
        ("TPOT under 70% of that with fewer clients of the same server", fallen(left)),
        ("prompts faster than the card computes: a prefix cache served them", cached(left)),
        ("the client kept to 100 connections, far fewer than its clients", held_back(left)),
    ):
        kept = [run for run in left if id(run.row) not in bad]
        if len(kept) < len(left):
            loaded.skip(reason, len(left) - len(kept))
        left = kept
    loaded.rows = one_slot_less(unhurried(left))
    return loaded


def _row(record: Record) -> Row:
    _refuse(record)
    inferencex = record.flag("is_inferencex")
    backend, version = record.text("backend"), record.text("backend_version")
    model, gpu = model_name(record.text("model_path")), gpu_name(record.text("system"))
    clients = record.count("concurrency")
    layout = layout_of(record, inferencex=inferencex)
    replicas = 1 if inferencex else _replicas(record, clients, layout[2])
    dtype = weight_dtype(
        record.text("model_path"),
        record.text("precision"), record.text("moe_quant_mode"), record.text("gemm_quant_mode"),
    )  # fmt: skip
    inputs, outputs = lengths(record, clients, inferencex=inferencex)
    held = inferencex and _holds_prompts_back(record)
    notes = _notes(record, inferencex=inferencex)
    deployment = Deployment(
        tensor_parallel=layout[0],
        pipeline_parallel=layout[1],
        data_parallel=layout[2],
        expert_parallel=layout[3],
        replicas=replicas,
        engine=f"{backend} {version}".strip(),
        weight_dtype=dtype,
        kv_dtype=_kv_dtype(backend, gpu, dtype, inferencex=inferencex),
        max_num_seqs=_slots(record, backend, gpu, inferencex=inferencex),
        max_num_batched_tokens=_budget(record, backend, model, inferencex=inferencex),
        prefix_caching=False,
        launch=_launch(record, backend, layout[0], inferencex=inferencex),
    )
    server = (model, gpu, backend, version, dtype, *layout, replicas, inferencex)
    return Row(
        set=SET,
        id=record.text("id") or f"{model} {gpu} {clients}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.CLOSED, inputs, outputs, concurrency=clients),
        measured=_measured(record),
        notes=(*notes, *([HELD] if held else [])),
        scored=("tpot_mean_s",) if held else (),
        server="|".join(str(part) for part in server),
    )


def _holds_prompts_back(record: Record) -> bool:
    """Whether the launch script had prompts wait up to 20 steps for others (Llama under
    TensorRT-LLM, 1k in and out, fewer than 8 GPUs): TTFT is 20 TPOT longer than that of the same
    prompts with longer answers, and the simulator has no such rule."""
    lengths_told = record.text("isl"), record.text("osl")
    return (
        record.text("backend") == "trtllm"
        and "llama" in record.text("model_path").casefold()
        and lengths_told == ("1024", "1024")
        and record.count("tp_size") < NODE
    )


def _refuse(record: Record) -> None:
    mode = record.text("mode")
    if mode == "disagg":
        raise LeftOut("prompts and decodes in pools of their own, their sizes not in the file")
    if mode not in ("agg", ""):
        raise LeftOut(f"mode {mode!r} is not known")
    if record.flag("exact_duplicate"):
        raise LeftOut("flagged: an exact duplicate")
    if record.flag("nonmonotone_tpot"):
        raise LeftOut("flagged: TPOT falls with more clients")
    if (record.number("repeat_spread_tpot") or 1.0) > REPEATS_AGREE:
        raise LeftOut("flagged: repeats differ by more than a quarter")


def _measured(record: Record) -> dict[str, float]:
    found = milliseconds(
        record, {"silicon_ttft_ms": "ttft_mean_s", "silicon_tpot_ms": "tpot_mean_s"}
    )
    if not found:
        raise LeftOut("neither TTFT nor TPOT")
    return found


def layout_of(record: Record, *, inferencex: bool) -> Layout:
    """The layout of one replica.

    TP x attention DP = MoE TP x MoE EP in this file; a blank attention DP follows from it. Some
    InferenceX rows count more GPUs than a server has: where both factors agree the inner one is
    meant (InferenceX names an engine by TP, EP and whether attention is data parallel).
    """
    tp, pp = record.count("tp_size"), record.count_or("pp_size", 1)
    dp = record.count_or("attention_dp_size", 0) if record.number("attention_dp_size") else 0
    moe_tp, moe_ep = record.count_or("moe_tp_size", 1), record.count_or("moe_ep_size", 1)
    experts = moe_tp * moe_ep
    if not dp:
        dp = experts // tp if experts > tp and experts % tp == 0 else 1
    if inferencex and tp * dp * pp > NODE:
        if moe_tp == moe_ep and tp * dp == experts:
            return (moe_tp, pp, 1, True) if dp == 1 else (1, pp, moe_tp, True)
        if tp == dp and experts == tp * dp:
            return tp, pp, 1, moe_ep > 1
        raise LeftOut("a cluster of several engines, recorded as one tensor-parallel group")
    return tp, pp, dp, moe_ep > 1


def _replicas(record: Record, clients: int, dp: int) -> int:
    """Clients over the batch of one engine, where that is a whole number."""
    batch = record.number("batch_size")
    if not batch or batch <= 0:
        return 1
    count = clients / (batch * dp)
    return int(count) if count == int(count) and count > 1 else 1


def lengths(record: Record, clients: int, *, inferencex: bool) -> tuple[Ints, Ints]:
    """Prompt and output of each request."""
    isl, osl = record.count("isl"), record.count("osl")
    count = REQUESTS_PER_CLIENT * clients
    if not inferencex:
        return same(isl, count), same(osl, count)
    rng = np.random.RandomState(0)
    inputs = uniform(int(isl * RANGE_RATIO), isl, count, rng=rng)
    return inputs, uniform(int(osl * RANGE_RATIO), osl, count, rng=rng)


def _notes(record: Record, *, inferencex: bool) -> tuple[str, ...]:
    notes = ["TTFT and TPOT taken for means: the file does not say"]
    if not inferencex:
        notes.append("10 requests a client and lengths without spread assumed")
    if not record.text("backend_version"):
        notes.append("engine version not recorded")
    return tuple(notes)


def _kv_dtype(backend: str, gpu: str, dtype: str, *, inferencex: bool) -> str:
    """fp8 where the launch scripts ask for it; the runs on Hopper under vLLM hold as many requests
    as a 16-bit cache does (H100, TP2, 8k prompts: 28 of 64 run)."""
    if dtype in ("bf16", "fp16"):
        return "bf16"
    if backend == "trtllm" or (inferencex and gpu.startswith(BLACKWELL)):
        return "fp8"
    return "bf16"


def _slots(record: Record, backend: str, gpu: str, *, inferencex: bool) -> int:
    """Batch slots of one rank."""
    clients = record.count("concurrency")
    if inferencex:
        return max(512, clients) if gpu.startswith(BLACKWELL) else clients
    batch = int(record.number("batch_size") or clients)
    return batch if backend == "trtllm" else max(256, batch)


def _budget(record: Record, backend: str, model: str, *, inferencex: bool) -> int:
    """Tokens of a step. Whole prompts only (TensorRT-LLM, generated): as many as fit, and a token
    for each decode."""
    if inferencex:
        return (20_000 if "gpt-oss" in model else 16_384) if backend == "trtllm" else 8192
    if backend == "sglang":
        return 8192
    isl, batch = record.count("isl"), record.count("concurrency")
    whole = (isl + ROOM) // isl * isl
    return batch + (whole if backend == "trtllm" else isl + ROOM)


def _launch(record: Record, backend: str, tp: int, *, inferencex: bool) -> str | None:
    """The one flag of a launch that has no key of its own."""
    version = tuple(int(n) for n in re.findall(r"\d+", record.text("backend_version"))[:3])
    if backend != "sglang" or inferencex or version < GENERATED_MIXED:
        return None
    return MIXED.format(record.text("model_path"), tp)
