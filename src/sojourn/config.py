"""`sojourn.yaml`: what a team tells sojourn about its fleet, its targets and its prices.

One file, few keys, each optional. `Config.load` reads it, `json_schema` publishes it,
`commented_yaml` writes the starting file of `sojourn init`. Precedence of a value:
flag > file > fitted > catalogue.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sojourn.errors import ConfigError
from sojourn.yaml_file import YamlError, read_yaml

MAX_COUNT: Final = 10**12
"""Of tokens, blocks and slots: past any machine, and sums of them still fit 64 bits."""
MAX_REPLICAS: Final = 1_000
"""Each is simulated and sampled by itself: ten thousand take more memory than a machine has. A
larger fleet is looked at in parts, as its router splits it."""
MAX_SERVERS: Final = 1_000_000
MAX_ATTEMPTS: Final = 100
MAX_BACKOFF_FACTOR: Final = 1_000.0
"""With the most attempts the last wait is 1e297 times the first: still a number."""
MAX_S: Final = 1e9
"""Thirty years: a longer time limit or wait is a wrong unit."""
MAX_USD: Final = 1e9
MAX_SEED: Final = 2**63 - 1
MAX_CONFIDENCE: Final = 0.9999
"""Beyond, quantiles of few values are infinite."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BucketRule(_Section):
    """A bucket of the user's own: the first rule that matches a request names its bucket.

    Every condition that is set must hold.
    """

    name: str = Field(description="Name of the bucket.")
    tenant: str | None = Field(None, description="Exact tenant.")
    route: str | None = Field(None, description="Exact route.")
    min_input_tokens: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="Largest input of a call, at least."
    )
    min_output_tokens: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="Sum of outputs, at least."
    )


class Buckets(_Section):
    """Thresholds of the default buckets. Order of precedence: custom, multimodal, tool_agent,
    long_document, long_output, else short_chat."""

    long_document_min_input_tokens: int = Field(
        4000,
        ge=1,
        le=MAX_COUNT,
        description="A request whose largest call has this many input tokens.",
    )
    long_output_min_output_tokens: int = Field(
        600,
        ge=1,
        le=MAX_COUNT,
        description="A request whose calls write this many tokens together.",
    )
    custom: tuple[BucketRule, ...] = Field((), description="Buckets of your own, tried first.")


class Slo(_Section):
    """Targets of one bucket, held *jointly*: a request is good when it meets all of them."""

    percentile: float = Field(
        0.99, gt=0, lt=1, description="Share of requests that must meet every target."
    )
    ttft_s: float | None = Field(
        None, gt=0, description="Time to first token of the request, seconds."
    )
    ttft_per_input_token_s: float = Field(
        0.0, ge=0, description="Added to ttft_s for each input token: fair to long prompts."
    )
    tpot_s: float | None = Field(
        None, gt=0, description="Seconds per output token after the first."
    )
    e2e_s: float | None = Field(None, gt=0, description="Whole request, seconds.")
    max_error_share: float = Field(
        0.01, ge=0, le=1, description="Errors, timeouts and shed requests, of all requests."
    )


class Deployment(_Section):
    """What serves the model. Unknown numbers are left out: the catalogue or the fit fills them."""

    model: str | None = Field(
        None, description="Catalogue name, or the path of a Hugging Face config.json."
    )
    accelerator: str | None = Field(None, description="Catalogue name of the GPU.")
    launch: str | None = Field(
        None,
        description="How the engine is started: a vLLM, SGLang or TensorRT-LLM command line, or the"
        " path of a file that holds one (a shell script, a Kubernetes manifest). Keys set here"
        " win over what it says.",
    )
    tensor_parallel: int = Field(
        1, ge=1, le=MAX_REPLICAS, description="Accelerators that share each layer."
    )
    pipeline_parallel: int = Field(
        1, ge=1, le=MAX_REPLICAS, description="Stages the layers are cut into."
    )
    data_parallel: int = Field(
        1,
        ge=1,
        le=MAX_REPLICAS,
        description="Ranks of one replica with a batch and KV pool of their own (DP attention);"
        " a replica has tensor x pipeline x data accelerators.",
    )
    expert_parallel: bool = Field(
        False, description="Whether routed experts are spread whole over all ranks."
    )
    enforce_eager: bool = Field(False, description="Whether the engine runs without CUDA graphs.")
    replicas: int = Field(
        1, ge=1, le=MAX_REPLICAS, description="Engine replicas behind the router."
    )
    engine: str = Field(
        "vllm", description="vllm, sglang or trtllm; its version may follow: `vllm 0.18.0`."
    )
    weight_dtype: str = Field("bf16", description="bf16, fp16, fp8, int8, int4.")
    kv_dtype: str = Field("bf16", description="bf16, fp16, fp8.")
    max_num_seqs: int = Field(256, ge=1, le=MAX_COUNT, description="Batch slots of a replica.")
    max_num_batched_tokens: int = Field(
        8192, ge=1, le=MAX_COUNT, description="Token budget of one step."
    )
    max_model_len: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Longest context, tokens."
    )
    block_size: int = Field(16, ge=1, le=MAX_COUNT, description="Tokens in a KV block.")
    kv_blocks: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="KV blocks of a replica, as the engine prints them."
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Share of memory the engine may take."
    )
    prefix_caching: bool = Field(True, description="Whether prefixes are reused.")
    usd_per_replica_hour: float | None = Field(
        None,
        ge=0,
        le=MAX_USD,
        description="Price of one replica (all its accelerators) for an hour.",
    )


class Station(_Section):
    """A part of the chain outside the engine: a retriever, a reranker, a tool."""

    servers: int | None = Field(
        None,
        ge=1,
        le=MAX_SERVERS,
        description="How many requests it works on at once; unset: inferred or no limit.",
    )
    timeout_s: float | None = Field(
        None, gt=0, le=MAX_S, description="Its own time limit, seconds."
    )
    stops_on_cancel: bool = Field(False, description="Whether work stops when the caller has gone.")
    optional: bool = Field(
        False, description="Whether the request can do without it (degrade, or skip at the peak)."
    )
    usd_per_call: float = Field(0.0, ge=0, le=MAX_USD, description="Price of one visit.")


class Retry(_Section):
    """What the gateway does with an attempt that fails."""

    attempt_timeout_s: float | None = Field(
        None,
        gt=0,
        le=MAX_S,
        description="Time limit of one attempt, seconds; unset: looked for in the data.",
    )
    max_attempts: int = Field(
        1, ge=1, le=MAX_ATTEMPTS, description="Attempts per request, the first included."
    )
    backoff_s: float = Field(
        0.0, ge=0, le=MAX_S, description="Wait before the second attempt, seconds."
    )
    backoff_factor: float = Field(
        2.0, ge=1, le=MAX_BACKOFF_FACTOR, description="Each further wait is this much longer."
    )
    retry_on_timeout: bool = Field(True, description="Whether a timed-out attempt is tried again.")
    degrade_on_timeout: bool = Field(
        False, description="Whether a timed-out attempt answers with what it has (degraded, ok)."
    )
    jitter: float = Field(
        0.0, ge=0, le=1, description="A wait is drawn from 1-jitter to 1+jitter times its length."
    )


class Analysis(_Section):
    """How the analysis is run."""

    peak_window_s: float = Field(
        60.0, gt=0, description="Length of the window that sizes the peak."
    )
    confidence: float = Field(
        0.9, gt=0, le=MAX_CONFIDENCE, description="Of every interval printed."
    )
    replications: int = Field(3, ge=1, le=1_000, description="Simulation runs per answer.")
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Of every random draw.")


class Config(_Section):
    """The whole of sojourn.yaml."""

    buckets: Buckets = Field(default_factory=Buckets, description="How requests are told apart.")
    slo: dict[str, Slo] = Field(
        default_factory=dict, description="Targets by bucket name; `default` serves the rest."
    )
    deployment: Deployment = Field(default_factory=Deployment, description="What serves the model.")
    stations: dict[str, Station] = Field(
        default_factory=dict, description="Chain outside the engine, by span name."
    )
    retry: Retry = Field(default_factory=Retry, description="Retries of the gateway.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Column map for CSV, JSONL and Parquet: `our.column: their_column`.",
    )
    analysis: Analysis = Field(default_factory=Analysis, description="How the analysis is run.")

    @model_validator(mode="after")
    def _bucket_names_unique(self) -> Self:
        names = [rule.name for rule in self.buckets.custom]
        if len(names) != len(set(names)):
            raise ValueError(f"two custom buckets share a name: {sorted(names)}")
        return self

    def slo_of(self, bucket: str) -> Slo | None:
        """The targets of a bucket, the `default` ones, or None where there are none."""
        return self.slo.get(bucket, self.slo.get("default"))

    @classmethod
    def load(cls, path: Path | str | None) -> Self:
        """Read a sojourn.yaml; None gives the defaults.

        Raises:
            ConfigError: file missing, not YAML, or a key unknown or out of range.
        """
        if path is None:
            return cls()
        try:
            raw = read_yaml(Path(path))
        except YamlError as error:
            raise ConfigError(
                f"{path}: {error}. Correct the file; `sojourn init` writes one to start from"
            ) from error
        if raw is None:
            return cls()
        if not isinstance(raw, dict):
            raise ConfigError(
                f"{path}: expected keys such as `deployment:` at the top, found a"
                f" {type(raw).__name__}. `sojourn init` writes a file to start from"
            )
        found = _beside(raw, Path(path).parent)
        return cls.from_dict(found, str(path))

    @classmethod
    def from_dict(cls, raw: dict[str, Any], where: str = "config") -> Self:
        """Validate a mapping.

        Raises:
            ConfigError: names the first offending key and what was expected.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            lines = [
                f"{'.'.join(str(part) for part in item['loc']) or '(top)'}: {item['msg']}"
                f" (found {str(item['input'])[:60]!r})"
                for item in error.errors()
            ]
            raise ConfigError(
                f"{where}: {'; '.join(lines)}. `sojourn schema` prints every key"
            ) from error


def _beside(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A config.json, an accelerator's row or a launch file named relative to sojourn.yaml is
    looked for beside that file."""
    deployment = raw.get("deployment")
    if not isinstance(deployment, dict):
        return raw
    found = {}
    for key, endings in _FILE_KEYS.items():
        named = deployment.get(key)
        if isinstance(named, str) and named.endswith(endings) and _is_file(folder / named):
            found[key] = str(folder / named)
    return {**raw, "deployment": {**deployment, **found}}


_FILE_KEYS: Final = {"model": (".json",), "accelerator": (".yaml", ".yml"), "launch": ("",)}
"""Keys of `deployment` that may name a file, and how it ends."""


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a command line is too long a name for one."""
    try:
        return path.is_file()
    except OSError:
        return False


def json_schema() -> dict[str, Any]:
    """JSON Schema of sojourn.yaml (`sojourn schema` prints it)."""
    return Config.model_json_schema()


def _entries(model: type[BaseModel], indent: int) -> list[str]:
    pad = "#" + " " * (indent + 1)
    lines: list[str] = []
    for name, info in model.model_fields.items():
        default = info.get_default(call_default_factory=True, validated_data={})
        text = "" if default is None else json.dumps(default, default=str)
        lines.append(f"{pad}{name}: {text}  # {info.description}".replace(":   #", ":  #"))
    return lines


def commented_yaml() -> str:
    """The file of `sojourn init`: every key, its default and meaning, commented out."""
    parts = [
        "# sojourn.yaml: what sojourn cannot see in the telemetry. Every key is optional.",
        "# Remove the leading `#` of the lines you set.",
    ]
    sections: list[tuple[str, type[BaseModel], str | None]] = [
        ("buckets", Buckets, None),
        ("slo", Slo, "default"),
        ("deployment", Deployment, None),
        ("stations", Station, "retrieval kb"),
        ("retry", Retry, None),
        ("analysis", Analysis, None),
    ]
    for key, model, item in sections:
        parts += ["", f"# {Config.model_fields[key].description}", f"#{key}:"]
        if item is not None:
            parts.append(f"#  {item}:")
        parts += _entries(model, 3 if item else 1)
    parts += ["", f"# {Config.model_fields['columns'].description}", "#columns:"]
    parts += ["#  calls.input_tokens: prompt_tokens", ""]
    return "\n".join(parts)
