"""Flags that contradict each other, the model, the card or the machine: found and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.launch_deployment import quantised_dtype, weights_dtype
from sojourn.capacity.launch_records import Launch
from sojourn.capacity.memory_knobs import engine_version
from sojourn.capacity.model_records import AttentionKind, ModelSpec
from sojourn.capacity.plausible import Finding
from sojourn.config import Deployment

VLLM_BLOCKS: Final = frozenset({1, 8, 16, 32, 64, 128, 256})
"""Block sizes vLLM takes (`BlockSize`); from 0.20 on any multiple of 16."""
_COUNTS: Final = (
    "tensor_parallel", "pipeline_parallel", "data_parallel", "replicas", "max_num_seqs",
    "max_num_batched_tokens", "max_model_len", "block_size", "kv_blocks",
)  # fmt: skip
_WIDE: Final = frozenset({"bf16", "fp16", "fp32"})


class Setting(NamedTuple):
    """What is checked; model, card and launch where they are known."""

    deployment: Deployment
    launch: Launch | None = None
    model: ModelSpec | None = None
    gpu: Gpu | None = None

    @property
    def engine(self) -> str:
        """vllm, sglang or trtllm."""
        return engine_version(self.deployment.engine)[0]

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        d = self.deployment
        return d.tensor_parallel * d.pipeline_parallel * d.data_parallel

    def stated(self, name: str) -> bool:
        """Whether somebody set this key."""
        return name in self.deployment.model_fields_set


ENGINES: Final = ("vllm", "sglang", "trtllm")
"""Whose rules are known."""


def check(setting: Setting) -> tuple[Finding, ...]:
    """Every contradiction, errors first."""
    impossible = tuple(_impossible(setting.deployment))
    if impossible:
        return impossible  # the other checks divide by these
    found = [finding for look in _CHECKS for finding in look(setting)]
    return tuple(sorted(found, key=lambda f: not f.error))


def _finding(where: str, what: str, todo: str = "", *, error: bool = False) -> Finding:
    return Finding(where=where, what=what, todo=todo, error=error)


def _impossible(deployment: Deployment) -> Iterator[Finding]:
    """Counts that no engine has, whatever else is set."""
    for name in _COUNTS:
        value = getattr(deployment, name)
        if value is not None and value < 1:
            yield _finding(name, f"{value}: expected 1 or more", "Correct the flag", error=True)


def _engine(s: Setting) -> Iterator[Finding]:
    name = engine_version(s.deployment.engine)[0]
    if name not in ENGINES:
        yield _finding(
            "engine",
            f"{s.deployment.engine!r} is not known: defaults, memory and host time are vLLM's",
            f"Known: {', '.join(ENGINES)}; a version may follow, as in `vllm 0.18.0`",
        )


def _shares(s: Setting) -> Iterator[Finding]:
    share = s.deployment.gpu_memory_utilization
    if share > 1:
        percent = share <= 100
        todo = f"Write {share / 100:g}" if percent else "Write a share between 0 and 1"
        what = f"{share:g} is a share of more than the whole memory"
        yield _finding("gpu_memory_utilization", what, todo, error=True)
    elif share <= 0:
        yield _finding("gpu_memory_utilization", f"{share:g} leaves nothing", error=True)
    launch = s.launch
    if launch is not None and launch.flag("kv_cache_memory_bytes") is not None:
        size = launch.number("kv_cache_memory_bytes") or 0
        if size < 2**20:
            yield _finding(
                "--kv-cache-memory-bytes",
                f"{size:g} bytes hold no block",
                f"If it is in GB, write {size:g}g",
                error=True,
            )
        elif launch.flag("gpu_memory_utilization") is not None:
            yield _finding(
                "--gpu-memory-utilization", "has no effect beside --kv-cache-memory-bytes"
            )


def _budget(s: Setting) -> Iterator[Finding]:
    d = s.deployment
    if s.engine == "vllm" and d.max_num_batched_tokens < d.max_num_seqs:
        yield _finding(
            "max_num_batched_tokens",
            f"a step of {d.max_num_batched_tokens} tokens cannot hold one token for each of"
            f" max_num_seqs {d.max_num_seqs} sequences: vLLM refuses to start",
            "Raise max_num_batched_tokens or lower max_num_seqs",
            error=s.stated("max_num_batched_tokens"),
        )
    chunked = None if s.launch is None else s.launch.truth("chunked_prefill")
    length = d.max_model_len or (s.model.max_model_len if s.model else None)
    if chunked is False and length is not None and length > d.max_num_batched_tokens:
        yield _finding(
            "max_model_len",
            f"without chunked prefill a prompt of {length} tokens does not fit into a step of"
            f" {d.max_num_batched_tokens}",
            "Turn chunked prefill on, lower max_model_len, or raise max_num_batched_tokens",
            error=s.stated("max_num_batched_tokens"),
        )


def _heads(s: Setting) -> Iterator[Finding]:
    if s.model is None:
        return
    tp = s.deployment.tensor_parallel
    for a in s.model.attention:
        if a.kind is AttentionKind.LINEAR or not a.kv_values_per_token:
            continue
        if a.kind is AttentionKind.LATENT:
            if tp > 1:
                yield _finding(
                    "tensor_parallel",
                    f"{s.model.name} caches one latent per token: each of {tp} ranks holds all of"
                    " it",
                    "Data-parallel attention (data_parallel) holds it once per rank",
                )
            return
        heads = a.score_prefill * a.kv_heads // a.kv_values_per_token
        if heads % tp:
            yield _finding(
                "tensor_parallel",
                f"{tp} does not divide the {heads} attention heads of {s.model.name}",
                f"Take one of {', '.join(str(n) for n in _divisors(heads))}",
                error=True,
            )
        elif a.kv_heads % tp and tp % a.kv_heads:
            yield _finding(
                "tensor_parallel",
                f"{tp} neither divides nor is a multiple of the {a.kv_heads} KV heads",
                error=True,
            )
        elif tp > a.kv_heads:
            yield _finding(
                "tensor_parallel",
                f"{tp} ranks share {a.kv_heads} KV heads: each cached number is held"
                f" {tp // a.kv_heads} times",
                f"{tp // a.kv_heads} replicas of tensor_parallel {a.kv_heads} hold more",
            )
        return


def _divisors(heads: int) -> list[int]:
    return [n for n in (1, 2, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 64) if heads % n == 0]


def _machine(s: Setting) -> Iterator[Finding]:
    launch = s.launch
    if launch is None or launch.gpus is None:
        return
    needed = s.ranks
    local = launch.number("data_parallel_local")
    if local is not None:
        needed = needed // s.deployment.data_parallel * int(local)
    d = s.deployment
    layout = f"tensor {d.tensor_parallel} x pipeline {d.pipeline_parallel} x data {d.data_parallel}"
    if needed > launch.gpus:
        yield _finding(
            launch.name or "launch",
            f"{layout} needs {needed} accelerators, {launch.gpus} are there",
            "Correct the parallel sizes or the limit of the container",
            error=True,
        )
    elif needed < launch.gpus:
        yield _finding(
            launch.name or "launch",
            f"{layout} uses {needed} of {launch.gpus} accelerators: {launch.gpus - needed} idle",
        )


def _experts(s: Setting) -> Iterator[Finding]:
    if not s.deployment.expert_parallel:
        return
    if s.model is not None and not any(m.experts for m in s.model.mlp):
        yield _finding("expert_parallel", f"{s.model.name} has no routed experts: it does nothing")
    elif s.ranks == 1:
        yield _finding("expert_parallel", "with one accelerator it does nothing")


def _formats(s: Setting) -> Iterator[Finding]:
    d = s.deployment
    if s.gpu is not None and s.gpu.fp8_flops is None:
        if d.kv_dtype.startswith("fp8"):
            yield _finding(
                "kv_dtype",
                f"{s.gpu.name} has no fp8 units: an fp8 cache saves memory, but is widened to read",
                "Check that the engine's attention backend takes fp8 on this card",
            )
        if d.weight_dtype == "fp8":
            yield _finding(
                "weight_dtype",
                f"{s.gpu.name} has no fp8 units: fp8 weights are widened and multiplied in 16 bits",
            )
    asked = None if s.launch is None else s.launch.text("quantization")
    if asked is None or s.model is None:
        return
    stored, wanted = s.model.checkpoint_dtype, quantised_dtype(asked)
    if wanted is not None and stored not in _WIDE and stored != wanted:
        yield _finding(
            "--quantization",
            f"{asked} ({wanted}) is asked for, the checkpoint is {stored}",
            "Leave the flag out (the engine reads the checkpoint's own format), or change model",
            error=True,
        )
    elif wanted == "int4" and stored in _WIDE and asked.lower() != "bitsandbytes":
        yield _finding(
            "--quantization",
            f"{asked} needs a checkpoint in that format; {s.model.name} is known in {stored}",
            "Name the quantised checkpoint's config.json as deployment.model",
        )


def _lengths(s: Setting) -> Iterator[Finding]:
    length, model = s.deployment.max_model_len, s.model
    most = None if model is None else model.max_model_len
    if model is not None and most is not None and length is not None and length > most:
        yield _finding(
            "max_model_len",
            f"{length} is more than the {most} positions of {model.name}: an engine refuses it"
            " unless rope scaling is set",
            "Lower max_model_len, or give the config.json with its rope scaling",
        )


def _blocks(s: Setting) -> Iterator[Finding]:
    d = s.deployment
    allowed = d.block_size in VLLM_BLOCKS or d.block_size % 16 == 0
    if s.engine == "vllm" and not allowed:
        yield _finding(
            "block_size",
            f"vLLM takes no blocks of {d.block_size} tokens",
            "Take 16, 32, 64 or 128",
            error=True,
        )
    if d.kv_blocks is not None and s.stated("max_num_seqs") and d.max_num_seqs > d.kv_blocks:
        yield _finding(
            "max_num_seqs",
            f"{d.max_num_seqs} sequences never run at once: {d.kv_blocks} KV blocks hold one block"
            " each for fewer",
        )


def _speculation(s: Setting) -> Iterator[Finding]:
    launch = s.launch
    names = ("speculative", "speculative_method", "draft_model")
    if launch is None or not any(launch.flag(name) for name in names):
        return
    drafts = launch.number("draft_tokens")
    if s.engine == "vllm" and not drafts:
        yield _finding(
            "--speculative-config", "names no num_speculative_tokens: vLLM refuses it", error=True
        )
    if s.deployment.pipeline_parallel > 1:
        yield _finding(
            "--speculative-config",
            "drafting beside pipeline parallelism is refused by most versions",
        )
    yield _finding(
        "speculation",
        "drafted tokens are counted in memory only; step times are of decoding without drafts",
        "Fit step times to this engine's own telemetry",
    )


def _left(s: Setting) -> Iterator[Finding]:
    """What of the launch could not be used."""
    if s.launch is None:
        return
    for flag in s.launch.unresolved:
        yield _finding(
            f"{flag.spelled} ({flag.where})",
            f"the value of {str(flag.value)[:60]} is not known here",
            "Put the value in, or set the key in sojourn.yaml",
        )
    if s.launch.unknown:
        every = sorted({flag.spelled[:40] for flag in s.launch.unknown})
        names = ", ".join(every[:_SHOWN])
        more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
        yield _finding("launch", f"flags that are not known were left out: {names}{more}")
    for name, known in (("dtype", weights_dtype), ("quantization", quantised_dtype)):
        asked = s.launch.text(name)
        if asked is not None and asked.lower() not in _OWN and known(asked) is None:
            yield _finding(
                f"--{name}", f"{asked[:40]!r} is not known here", "Set deployment.weight_dtype"
            )
    for note in s.launch.notes:
        yield _finding("launch", note)
    for name, what in _OLD.items():
        if s.launch.flag(name) is not None and s.engine == "vllm":
            yield _finding(f"--{name.replace('_', '-').removesuffix('-gb')}", what)


_OWN: Final = frozenset({"auto", "none", "compressed-tensors", "quark", "modelopt_mixed", "gguf"})
"""Values that leave the weight format to the checkpoint."""
_SHOWN: Final = 20
"""Unknown flags named."""
_OLD: Final = {
    "swap_space_gb": "no effect in the V1 engine: preempted requests are computed again",
    "scheduler_steps": "multi-step scheduling was taken out with the V1 engine",
}
_CHECKS: Final[tuple[Callable[[Setting], Iterator[Finding]], ...]] = (
    _engine, _shares, _budget, _heads, _machine, _experts, _formats, _lengths, _blocks,
    _speculation, _left,
)  # fmt: skip
