"""Memory of one replica by part, the KV pool that is left, and how many requests it holds.

`Memory` is of a whole replica (tensor x pipeline x data accelerators): its GiB are sums over all
of them. Its tokens and concurrency are of *one* data-parallel rank, which has a scheduler and a
pool of its own, as an engine prints them. `deployment.kv_blocks` is of one rank too.
"""

from __future__ import annotations

import math

from sojourn.capacity import catalogue
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory_activations import activation_bytes, graphs_gib, non_torch_gib
from sojourn.capacity.memory_engines import Pool, pool, requests_of, room_bytes
from sojourn.capacity.memory_knobs import Knobs, knobs
from sojourn.capacity.memory_kv import (
    KV_BYTES,
    PRINTS_AT_MAX_LEN_SINCE,
    held_tokens,
    kv_bytes,
    kv_bytes_per_token,
    kv_replication,
    kv_value_bytes,
    state_bytes_per_request,
)
from sojourn.capacity.memory_weights import (
    BYTES_PER_PARAMETER,
    UNQUANTISED_BYTES,
    device_weight_bytes,
    weight_bytes,
    weight_dtype,
)
from sojourn.capacity.model_records import MlpLayers, ModelSpec
from sojourn.capacity.records import Memory
from sojourn.config import Deployment
from sojourn.errors import InputError, UsageError
from sojourn.trace.arrays import Floats
from sojourn.units import GIB

__all__ = [
    "BYTES_PER_PARAMETER",
    "KV_BYTES",
    "UNQUANTISED_BYTES",
    "activation_bytes",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_replication",
    "kv_value_bytes",
    "memory",
    "state_bytes_per_request",
    "weight_bytes",
    "weight_dtype",
]


def memory(
    model: ModelSpec,
    gpu: Gpu,
    deployment: Deployment,
    *,
    mean_context: float | None = None,
    lengths: tuple[Floats, Floats] | None = None,
) -> Memory:
    """Memory of one replica by part, and what its cache holds.

    `deployment.kv_blocks` wins over the account. `overhead_gib` holds memory outside the framework
    and what the share leaves unused: the parts sum to the whole. `concurrency_at_max_len` is as
    the engine prints it, `concurrency_at_profile` as `_held` has it (`lengths`: input and output
    tokens of each call).
    `kv_tokens` is as the engine prints it where every layer keeps every token; with windows or
    states and a known context it is the tokens of context held at once.

    Raises:
        UsageError: weights do not fit, or one request of max_model_len does not.
        InputError: `deployment.launch` cannot be read.
    """
    engine = knobs(deployment)
    target, model = model, _with_draft(model, engine)
    devices = _devices(deployment)
    total = gpu.memory_gib * devices
    weights = _weights_gib(model, deployment)
    _weights_fit(model, gpu, deployment, engine, weights)
    cache = pool(model, gpu.memory_gib, deployment, engine)
    kv = cache.bytes * deployment.data_parallel / GIB
    if kv > total - weights:
        raise UsageError(_too_many_blocks(model, gpu, deployment, total - weights, kv))
    graphs = min(graphs_gib(deployment, engine) * devices, total - weights - kv)
    peak = activation_bytes(model, deployment, engine) * devices / GIB
    activations = min(peak, total - weights - kv - graphs)
    held = _held(cache, mean_context, lengths)
    return Memory(
        total_gib=total,
        weights_gib=weights,
        activations_gib=activations,
        graphs_gib=graphs,
        overhead_gib=max(0.0, total - weights - activations - graphs - kv),
        kv_gib=kv,
        kv_bytes_per_token=kv_bytes_per_token(
            target, kv_value_bytes(deployment), deployment.tensor_parallel
        ),
        kv_bytes_per_request=state_bytes_per_request(model),
        kv_tokens=_tokens(model, deployment, engine, cache, held),
        concurrency_at_max_len=_at_max_len(model, deployment, cache),
        concurrency_at_profile=held[0],
        source=_source(target, gpu, deployment, engine),
    )


def _held(
    cache: Pool, mean_context: float | None, lengths: tuple[Floats, Floats] | None
) -> tuple[float | None, float | None]:
    """Requests held at once, of `mean_context` tokens or as running requests of these lengths
    grow, and the tokens that each then holds; None where neither is known."""
    if lengths is not None and len(lengths[0]):
        return requests_of(cache, *lengths), held_tokens(*lengths)
    if mean_context is not None:
        return cache.requests_at(mean_context), mean_context
    return None, None


def _with_draft(model: ModelSpec, engine: Knobs) -> ModelSpec:
    """The model with a draft model's layers and embeddings beside its own, where one is served;
    with its own prediction layers where it drafts for itself.

    Wrong when: the draft is stored in another format than the model (its share is small), or
    shares the model's embedding (EAGLE does: up to 2 GiB too much).
    """
    draft = _draft(engine)
    if draft is None:
        own = model.mtp_parameters if engine.draft_tokens and engine.draft_model is None else 0
        more = MlpLayers(layers=1, dense_parameters=own)
        return model.model_copy(update={"mlp": (*model.mlp, more)}) if own else model
    return model.model_copy(
        update={
            "attention": model.attention + draft.attention,
            "mlp": model.mlp + draft.mlp,
            "embedding_parameters": model.embedding_parameters + draft.embedding_parameters,
            "head_parameters": model.head_parameters + draft.head_parameters,
            "norm_parameters": model.norm_parameters + draft.norm_parameters,
        }
    )


def _draft(engine: Knobs) -> ModelSpec | None:
    """The draft model, where the catalogue has it."""
    if engine.draft_model is None:
        return None
    try:
        return catalogue.model(engine.draft_model)
    except (UsageError, InputError):
        return None


def _devices(deployment: Deployment) -> int:
    return deployment.tensor_parallel * deployment.pipeline_parallel * deployment.data_parallel


def _weights_gib(model: ModelSpec, deployment: Deployment) -> float:
    """Of all devices of the replica."""
    stages = range(deployment.pipeline_parallel)
    per_stage = sum(device_weight_bytes(model, deployment, stage) for stage in stages)
    return per_stage * deployment.tensor_parallel * deployment.data_parallel / GIB


def _weights_fit(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, engine: Knobs, weights: float
) -> None:
    """Refuses where nothing is left for the cache and the engine's own count is not known."""
    stages = range(deployment.pipeline_parallel)
    rooms = [room_bytes(model, gpu.memory_gib, deployment, engine, stage) for stage in stages]
    over = weights > gpu.memory_gib * _devices(deployment) + engine.cpu_offload_gib
    if over or (min(rooms) <= 0 and deployment.kv_blocks is None):
        raise UsageError(_does_not_fit(model, gpu, deployment, engine, weights))


def _at_max_len(model: ModelSpec, deployment: Deployment, cache: Pool) -> float | None:
    """Requests of max_model_len at once, as the engine prints it.

    Raises:
        UsageError: not even one, so that an engine would refuse to start.
    """
    length = deployment.max_model_len or model.max_model_len
    if length is None:
        return None
    budget = deployment.max_num_batched_tokens
    found = min(b.requests(b.layout.admission_blocks(length, budget)) for b in cache.budgets)
    if found < 1 and deployment.max_model_len is not None:
        tokens = math.floor(cache.main.blocks) * deployment.block_size
        raise UsageError(
            f"one request of max_model_len {length} tokens needs"
            f" {cache.main.layout.admission_blocks(length, budget)} KV blocks of"
            f" {deployment.block_size} tokens, a rank has {math.floor(cache.main.blocks)}"
            f" ({tokens} tokens): the engine would not start. Lower max_model_len, raise"
            " gpu_memory_utilization or tensor_parallel, or use fp8 KV"
        )
    return found


def _tokens(
    model: ModelSpec,
    deployment: Deployment,
    engine: Knobs,
    cache: Pool,
    at_once: tuple[float | None, float | None],
) -> int:
    """Tokens of one rank's pool (see `memory`). `at_once`: requests, and the context of each."""
    blocks, layout = math.floor(cache.main.blocks), cache.main.layout
    if len(cache.budgets) == 1 and layout.uniform:
        return blocks * layout.groups[0].tokens
    requests, context = at_once
    if requests is not None and context is not None:
        return math.floor(requests * context)
    length = deployment.max_model_len or model.max_model_len
    if engine.engine == "vllm" and length and not engine.older_than(*PRINTS_AT_MAX_LEN_SINCE):
        budget = deployment.max_num_batched_tokens
        return math.floor(blocks / layout.admission_blocks(length, budget) * length)
    count = sum(g.groups for g in layout.groups)
    return blocks // count * min(g.tokens for g in layout.groups)


def _too_many_blocks(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, left: float, kv: float
) -> str:
    return (
        f"deployment.kv_blocks {deployment.kv_blocks} of {deployment.block_size} tokens need"
        f" {kv:.1f} GiB, but {model.name} leaves {max(left, 0):.1f} GiB on"
        f" {_devices(deployment)} x {gpu.name}. Check kv_blocks, block_size, kv_dtype and"
        " tensor_parallel"
    )


def _does_not_fit(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, engine: Knobs, weights: float
) -> str:
    dtype = weight_dtype(model, deployment)
    share = gpu.memory_gib * deployment.gpu_memory_utilization
    advice = "a smaller token budget"
    for doubled in range(1, 11):
        degree = deployment.tensor_parallel * 2**doubled
        wider = deployment.model_copy(update={"tensor_parallel": degree, "kv_blocks": None})
        if room_bytes(model, gpu.memory_gib, wider, engine) > 0:
            advice = f"tensor_parallel {degree} or more"
            break
    outside = non_torch_gib(model, deployment)
    return (
        f"{model.name} in {dtype} does not fit: weights {weights:.1f} GiB on"
        f" {_devices(deployment)} x {gpu.name} with {share * _devices(deployment):.1f} GiB usable"
        f" leave no room for KV cache beside activations and {outside:.2f} GiB outside the"
        f" framework. Use {advice}, a quantised weight_dtype, or a larger accelerator"
    )


def _source(model: ModelSpec, gpu: Gpu, deployment: Deployment, engine: Knobs) -> str:
    dtype = weight_dtype(model, deployment)
    version = ".".join(str(part) for part in engine.version) or "version not named"
    rules = {"sglang": "SGLang", "trtllm": "TensorRT-LLM"}.get(engine.engine, "vLLM")
    pool_source = (
        "KV blocks as given by the engine"
        if deployment.kv_blocks
        else f"KV pool computed by the rules of {rules} ({version})"
    )
    loaded = (
        "" if dtype == deployment.weight_dtype else f" (checkpoint is {dtype}, loaded as it is)"
    )
    draft = ""
    if engine.draft_model is not None:
        counted = "counted" if _draft(engine) is not None else "not in the catalogue: not counted"
        draft = f"; draft model {engine.draft_model} {counted}"
    return f"{pool_source}; {model.name} in {dtype}{loaded}; {gpu.name} catalogue row{draft}"
