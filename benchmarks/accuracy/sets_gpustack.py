"""Loader of gpustack's performance lab: `vllm bench serve` bursts against vLLM, SGLang and
TensorRT-LLM, the serving command beside each."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Final

from sojourn.config import Deployment

from .reading import (
    MS,
    SHAREGPT_NOTE,
    Cells,
    card,
    dtype_of_name,
    measured,
    number,
    opened,
    same,
    sharegpt,
    whole,
)
from .rows import Arrivals, Load, Loaded, Row
from .sets_open import vllm_defaults

FIGURES: Final = {
    **{f"{w.lower()}_mean_s": (f"Mean {w} (ms)", MS) for w in ("TTFT", "TPOT", "ITL")},
    **{f"{w.lower()}_p50_s": (f"Median {w} (ms)", MS) for w in ("TTFT", "TPOT", "ITL")},
    **{f"{w.lower()}_p99_s": (f"P99 {w} (ms)", MS) for w in ("TTFT", "TPOT", "ITL")},
    "output_tokens_per_s": ("Output token throughput (tok/s)", 1.0),
    "requests_per_s": ("Request throughput (req/s)", 1.0),
}
ENGINES: Final = (
    ("sglang", "sglang"),
    ("trtllm-serve", "trtllm"),
    ("vllm serve", "vllm"),
    ("vllm.entrypoints", "vllm"),
)
NAMES: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
SPECULATIVE: Final = ("speculative", "num-nextn-predict", "mtp")
SLOTS: Final = {"sglang": 2048, "trtllm": 2048}
"""Most running requests by default: SGLang 2,048 (its memory is the tighter bound), TensorRT-LLM's
max_batch_size 2,048."""
BUDGET: Final = {"sglang": 8192, "trtllm": 8192}
"""SGLang's chunked prefill size on 80 to 141 GB cards; TensorRT-LLM's max_num_tokens."""


def gpustack(root: Path) -> Loaded:
    """One row for each result block whose command is told."""
    rows, _, loaded = opened(root / "gpustack_performance_lab_vllm_bench.csv")
    commands: dict[str, set[str]] = defaultdict(set)
    sections: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        commands[row["file"]].add(row["serve_cmd"])
        sections[row["file"]].add(row["section"])
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        one_for_all = len(commands[row["file"]]) == 1 and len(sections[row["file"]]) > 3
        reason = _left_out(row, seen, one_for_all=one_for_all)
        if reason is None:
            reason = _add(row, loaded)
        if reason is not None:
            loaded.skip(reason)
    return loaded


def _left_out(row: Cells, seen: set[tuple[str, ...]], *, one_for_all: bool) -> str | None:
    command = row["serve_cmd"]
    if not command.strip():
        return "no serving command"
    key = tuple(
        row[name] for name in ("Benchmark duration (s)", "Mean TTFT (ms)", "Mean TPOT (ms)")
    )
    if key in seen:
        return "the same result block on two pages"
    seen.add(key)
    if one_for_all and "optimized" not in row["block_title"].casefold():
        return "one command on a page of many settings: it is that of the optimized block only"
    if any(word in command for word in SPECULATIVE):
        return "speculative decoding: acceptance not told"
    section = row["section"].casefold()
    engine = engine_of(command)
    other = [name for name in NAMES.values() if section == name and name != NAMES.get(engine or "")]
    return "the command is another engine's than the section's" if other else None


def engine_of(command: str) -> str | None:
    """The engine that a command starts."""
    return next((name for word, name in ENGINES if word in command), None)


def flags_of(command: str) -> dict[str, str]:
    """Flags of a command: `--a b`, `--a=b`, `-a b`; a flag without a value is "true"."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found = {}
    for place, word in enumerate(words):
        if not re.match(r"--?[a-zA-Z]", word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        after = words[place + 1] if place + 1 < len(words) else ""
        bare = not after or bool(re.match(r"--?[a-zA-Z]", after))
        found[name.replace("_", "-")] = value if equals else "true" if bare else after
    return found


def _flag(flags: dict[str, str], *names: str) -> str | None:
    return next((flags[name] for name in names if name in flags), None)


def _count(flags: dict[str, str], *names: str) -> int | None:
    told = _flag(flags, *names)
    return int(told) if told and told.isdigit() and int(told) > 0 else None


def _model(command: str, flags: dict[str, str]) -> str | None:
    named = _flag(flags, "model-path", "model")
    words = command.split()
    for start in ("serve", "trtllm-serve"):
        if named is None and start in words and words.index(start) + 1 < len(words):
            named = words[words.index(start) + 1]
    return named.removeprefix("/workspace/") if named and named != "true" else None


def _add(row: Cells, loaded: Loaded) -> str | None:
    command = row["serve_cmd"]
    engine, flags, gpu = engine_of(command), flags_of(command), card(row["hardware"])
    model = _model(command, flags)
    if engine is None or model is None:
        return "engine or model not told"
    if not _of_page(model, row["file"]):
        return "the command is of another model than the page"
    if gpu is None:
        return f"card not known: {row['hardware']}"
    load = _load(row)
    if isinstance(load, str):
        return load
    version = re.search(rf"{NAMES[engine]}:? v?(\d[\d.a-z]*)", row["engines"].casefold())
    shaped = len(set(load.outputs.tolist())) > 1
    loaded.rows.append(
        Row(
            set="gpustack",
            id=f"{row['file'].removeprefix('docs/performance-lab/')} {row['section']}"
            f" {row['Benchmark duration (s)']}",
            model=_plain(model),
            gpu=gpu,
            deployment=_deployment(
                flags, gpu, model=model, engine=engine, version=version[1] if version else ""
            ),
            load=load,
            measured=measured(row, FIGURES),
            notes=(SHAREGPT_NOTE,) if shaped else ("equal lengths",),
            transient=True,
        )
    )
    return None


def _load(row: Cells) -> Load | str:
    """What was sent, or why that is not known.

    A cap on the client is a power of two in these runs; another number is the peak that was seen
    under a rate, which only some sections name. Totals that divide evenly are of equal lengths.
    """
    count = whole(row, "Successful requests")
    prompt, output = (number(row, f"Total {w} tokens") for w in ("input", "generated"))
    if not count or not prompt or not output:
        return "requests or tokens not told"
    rate = re.fullmatch(r"rate ([\d.]+)", row["section"].casefold())
    peak = whole(row, "Maximum request concurrency") or whole(row, "Peak concurrent requests")
    capped = rate is None and peak is not None and peak < count
    if capped and peak & (peak - 1):
        return "a rate was offered that is not told"
    inputs, outputs = (
        sharegpt(count, prompt / count, output / count)
        if output % count
        else (same(count, prompt / count), same(count, output / count))
    )
    arrivals = Arrivals.POISSON if rate else Arrivals.CLOSED if capped else Arrivals.BURST
    return Load(
        arrivals,
        inputs,
        outputs,
        rate_per_s=float(rate[1]) if rate else None,
        concurrency=peak if capped else None,
    )


def _of_page(model: str, page: str) -> bool:
    """Whether the sizes in a page's name are those in the model's."""
    folder = page.casefold().split("/")[-2:-1]
    sizes = re.findall(r"(?<![a-z])\d+(?:\.\d+)?b", folder[0]) if folder else []
    return all(size in model.casefold() for size in sizes)


def _plain(model: str) -> str:
    """The catalogue holds a checkpoint under its own name; a quantised one is the same model."""
    return re.sub(r"[-_](fp8|nvfp4|awq|gptq|int4|w8a8|bf16)(-dynamic)?$", "", model, flags=re.I)


def _deployment(
    flags: dict[str, str], gpu: str, *, model: str, engine: str, version: str
) -> Deployment:
    tensor = _count(flags, "tp", "tp-size", "tensor-parallel-size", "tensor-parallel") or 1
    ranks = _count(flags, "dp", "dp-size", "data-parallel-size") or 1
    replicas = 1
    if engine == "sglang":
        if "enable-dp-attention" in flags and ranks <= tensor:
            tensor //= ranks
        else:
            replicas, ranks = ranks, 1
    quantised = (_flag(flags, "quantization") or "").casefold()
    experts = _flag(flags, "enable-expert-parallel") or _flag(flags, "ep-size", "ep")
    defaults = (
        vllm_defaults(gpu)
        if engine == "vllm"
        else {"max_num_seqs": SLOTS[engine], "max_num_batched_tokens": BUDGET[engine]}
    )
    slots = _count(flags, "max-num-seqs", "max-running-requests", "max-batch-size")
    budget = _count(flags, "max-num-batched-tokens", "chunked-prefill-size", "max-num-tokens")
    share = _flag(flags, "gpu-memory-utilization", "mem-fraction-static")
    kv = _flag(flags, "kv-cache-dtype") or ""
    return Deployment(
        engine=f"{engine} {version}".strip(),
        tensor_parallel=tensor,
        pipeline_parallel=_count(flags, "pp", "pp-size", "pipeline-parallel-size") or 1,
        data_parallel=ranks,
        replicas=replicas,
        expert_parallel=bool(experts and experts != "1"),
        weight_dtype=dtype_of_name(quantised or model, native(model)),
        kv_dtype="fp8" if "fp8" in kv else "bf16",
        max_num_seqs=slots or defaults["max_num_seqs"],
        max_num_batched_tokens=budget or defaults["max_num_batched_tokens"],
        gpu_memory_utilization=float(share) if share and re.fullmatch(r"0?\.\d+", share) else 0.9,
        enforce_eager="enforce-eager" in flags or "disable-cuda-graph" in flags,
    )


def native(model: str) -> str:
    """The dtype of a checkpoint whose name does not tell it."""
    plain = model.casefold()
    if "gpt-oss" in plain:
        return "mxfp4"
    return "fp8" if re.search(r"deepseek-(r1|v3)(?!.*distill)", plain) else "bf16"
