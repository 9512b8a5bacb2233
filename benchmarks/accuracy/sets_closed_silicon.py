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
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from sojourn.config import Deployment

from .rows import Arrivals, Ints, Load, Loaded, Row
from .sets_closed_reading import (
    PEAK_SHARE,
    LeftOut,
    Record,
    collect,
    gpu_name,
    milliseconds,
    model_name,
    prompt_flops,
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
FALLS: Final = 0.7
"""A TPOT this far below that of fewer clients of the same server is not of the same run."""
BLACKWELL: Final = ("B200", "B300", "GB200", "GB300")
WAITS: Final = (0.7, 1.3)
"""Requests that always wait, by Little's law, where one batch slot was missing."""
CONNECTIONS: Final = 100
HELD: Final = "prompts are held back up to 20 steps (batch_wait_timeout_iters): TTFT not scored"
FEW: Final = 32
"""Clients up to which the initial burst does not hide that."""
GENERATED_MIXED: Final = (0, 5, 6)
"""SGLang from this version on ran with --enable-mixed-chunk where the generator launched it."""
ROOM: Final = 500
"""Tokens of a step beyond batch and prompt. The generator has had 500 and 1,500; with 1,500 two
prompts of 1,024 tokens share a step, and told TTFT of those rows is half too long."""
MIXED: Final = "python -m sglang.launch_server --model-path {} --tp {} --enable-mixed-chunk"


class Run(NamedTuple):
    """A row and its nominal lengths (those drawn differ with the number of requests)."""

    row: Row
    isl: int
    osl: int


Layout = tuple[int, int, int, bool]
"""TP, PP, attention DP, whether experts are spread."""


def silicon(folder: Path) -> Loaded:
    """Every row of one engine (prompts and decodes in one pool)."""
    loaded = Loaded()
    runs: dict[tuple[object, ...], Run] = {}

    def build(record: Record) -> list[Row]:
        row = _row(record)
        run = Run(row, record.count("isl"), record.count("osl"))
        key = (row.server, row.load.concurrency, *run[1:], *row.measured.items())
        if key in runs:
            raise LeftOut("the same figures as another row")
        runs[key] = run
        return []

    collect(records(folder / FILE, loaded), build, loaded)
    left = list(runs.values())
    for reason, bad in (
        ("TPOT under 70% of that with fewer clients of the same server", _fallen(left)),
        ("prompts faster than the card computes: a prefix cache served them", _cached(left)),
        ("the client kept to 100 connections, far fewer than its clients", _held_back(left)),
    ):
        kept = [run for run in left if id(run.row) not in bad]
        if len(kept) < len(left):
            loaded.skip(reason, len(left) - len(kept))
        left = kept
    loaded.rows = _one_slot_less(left)
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


def _fallen(runs: list[Run]) -> set[int]:
    """Rows whose TPOT is a fault of the file; versions of an engine count as one server."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row, isl, osl in runs:
        told = row.deployment
        name = told.engine.split(" ")[0]
        key = (row.group, name, told.tensor_parallel, told.data_parallel, told.replicas, isl, osl)
        found.setdefault(key, []).append(row)
    bad: set[int] = set()
    for group in found.values():
        most = 0.0
        for row in sorted(group, key=lambda r: r.load.concurrency or 0):
            tpot = row.measured.get("tpot_mean_s", 0.0)
            if 0 < tpot < FALLS * most:
                bad.add(id(row))
            most = max(most, tpot)
    return bad


def _held_back(runs: list[Run]) -> set[int]:
    """Rows in which, by Little's law, at most 100 of four times as many clients were in decode:
    100 connections are the default of the client's HTTP library, and TTFT counts the wait for one.
    """
    bad: set[int] = set()
    for run in runs:
        clients, told = run.row.load.concurrency or 1, run.row.measured
        if clients < 4 * CONNECTIONS or not {"ttft_mean_s", "tpot_mean_s"} <= set(told):
            continue
        decode = _decode_s(run)
        if clients * decode / (told["ttft_mean_s"] + decode) <= CONNECTIONS:
            bad.add(id(run.row))
    return bad


def prompt_share(row: Row) -> float | None:
    """FLOPs of the row's prompts over the peak of its cards, prompts per second by Little's law."""
    tpot, ttft = row.measured.get("tpot_mean_s"), row.measured.get("ttft_mean_s")
    if tpot is None or ttft is None:
        return None
    whole = ttft + tpot * (float(row.load.outputs.mean()) - 1)
    per_s = (row.load.concurrency or 1) / whole
    return prompt_flops(row, per_s * float(row.load.inputs.mean()))


def _cached(runs: list[Run]) -> set[int]:
    """Rows of every server of which one row's prompts cannot have been computed."""
    rows = [run.row for run in runs]
    fast = [row for row in rows if (prompt_share(row) or 0.0) > PEAK_SHARE]
    names = {(row.group, row.deployment.engine) for row in fast}
    return {id(row) for row in rows if (row.group, row.deployment.engine) in names}


def _one_slot_less(runs: list[Run]) -> list[Row]:
    """Slots less one where the rows of a server show that one request always waits.

    With longer outputs the mean TTFT then grows by 1/c of the whole time that a request runs
    (Little's law: c x that share is the requests that wait). In the 16-bit rows of TensorRT-LLM
    1.0 the share is 0.8 to 1.2 for c = 8 to 32, in the fp8 rows 0.0: a slot went to the padding of
    its CUDA graphs or to a request that had ended.
    """
    alike: dict[tuple[str, int, int], list[Run]] = {}
    for run in runs:
        batch = run.row.deployment.max_num_seqs
        told = {"ttft_mean_s", "tpot_mean_s"} <= set(run.row.measured)
        if told and batch == run.row.load.concurrency and batch <= FEW:
            alike.setdefault((run.row.server, batch, run.isl), []).append(run)
    waits: dict[str, list[float]] = {}
    for (server, batch, _), group in alike.items():
        short, long = min(group, key=_decode_s), max(group, key=_decode_s)
        gap = _decode_s(long) - _decode_s(short)
        if gap > 0:
            grown = long.row.measured["ttft_mean_s"] - short.row.measured["ttft_mean_s"]
            waits.setdefault(server, []).append(batch * grown / gap)
    short_of = {s for s, shares in waits.items() if WAITS[0] < median(shares) < WAITS[1]}
    return [_with_a_slot_less(r.row) if r.row.server in short_of else r.row for r in runs]


def _decode_s(run: Run) -> float:
    return run.row.measured["tpot_mean_s"] * (run.osl - 1)


def _with_a_slot_less(row: Row) -> Row:
    slots = max(1, row.deployment.max_num_seqs - 1)
    told = row.deployment.model_copy(update={"max_num_seqs": slots})
    note = "one request always waits in this server's rows: a batch slot less"
    return replace(row, deployment=told, notes=(*row.notes, note))
