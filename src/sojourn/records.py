"""The words everyone shares: stages, buckets, bottlenecks, statuses; and the base of records.

A record is frozen, crosses one border between rooms, and can be saved and loaded as JSON.
"""

from __future__ import annotations

import errno
import html
import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sojourn.errors import InputError
from sojourn.text_file import read_text


class Stage(StrEnum):
    """What a span of a request's time is spent on. The set is closed."""

    GATEWAY = "gateway"
    GUARDRAIL = "guardrail"
    RETRIEVAL = "retrieval"
    RERANK = "rerank"
    ENCODE = "encode"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    KV_TRANSFER = "kv_transfer"
    TOOL = "tool"
    NETWORK = "network"
    POSTPROCESS = "postprocess"
    BACKOFF = "backoff"
    UNEXPLAINED = "unexplained"


ENGINE_STAGES: Final = frozenset(
    {Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.KV_TRANSFER, Stage.ENCODE}
)
"""Stages that more engine replicas can shorten."""


ENGINE_HOST_SPANS: Final = ("engine front", "engine back")
"""Names of gateway spans that are the engine's own API server: before the queue, after the last
token."""


class Bucket(StrEnum):
    """The default request buckets; users name more in sojourn.yaml, so a bucket is a string."""

    SHORT_CHAT = "short_chat"
    LONG_DOCUMENT = "long_document"
    LONG_OUTPUT = "long_output"
    TOOL_AGENT = "tool_agent"
    MULTIMODAL = "multimodal"


class Status(StrEnum):
    """How a request or a call ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    SHED = "shed"


FAILED: Final = (Status.ERROR, Status.TIMEOUT, Status.SHED)
"""Ends that are the system's failure; who cancels has gone by himself."""


class TtftOrigin(StrEnum):
    """Where the clock of a time-to-first-token started."""

    CLIENT_SEND = "client_send"
    GATEWAY = "gateway"
    SERVER_ARRIVAL = "server_arrival"
    FIRST_SCHEDULED = "first_scheduled"


class Layer(StrEnum):
    """The six layers an action or a bottleneck belongs to."""

    REQUEST = "request"
    SCHEDULING = "scheduling"
    MODEL = "model"
    CACHE = "cache"
    KERNEL = "kernel"
    SYSTEM = "system"


class Bottleneck(StrEnum):
    """What limits a bucket, or why nothing can be said. The set is closed."""

    QUEUE_ADMISSION = "queue_admission"
    BATCH_SLOTS = "batch_slots"
    PREFILL_COMPUTE = "prefill_compute"
    DECODE_BANDWIDTH = "decode_bandwidth"
    KV_CAPACITY = "kv_capacity"
    CACHE_MISS = "cache_miss"
    HEAD_OF_LINE = "head_of_line"
    HOST_CPU = "host_cpu"
    GATEWAY = "gateway"
    RETRIEVAL = "retrieval"
    RERANK = "rerank"
    TOOL = "tool"
    NETWORK = "network"
    RETRY_AMPLIFICATION = "retry_amplification"
    TIMEOUT_TOO_SHORT = "timeout_too_short"
    ENCODER = "encoder"
    INTERCONNECT = "interconnect"
    KERNEL = "kernel"
    NOISY_NEIGHBOUR = "noisy_neighbour"
    COLD_START = "cold_start"
    CLIENT_LIMIT = "client_limit"
    NONE = "none"
    INSUFFICIENT_EVIDENCE = "insufficient_evidence"


LAYER_OF: Final[dict[Bottleneck, Layer | None]] = {
    Bottleneck.QUEUE_ADMISSION: Layer.SCHEDULING,
    Bottleneck.BATCH_SLOTS: Layer.SCHEDULING,
    Bottleneck.PREFILL_COMPUTE: Layer.MODEL,
    Bottleneck.DECODE_BANDWIDTH: Layer.MODEL,
    Bottleneck.KV_CAPACITY: Layer.CACHE,
    Bottleneck.CACHE_MISS: Layer.CACHE,
    Bottleneck.HEAD_OF_LINE: Layer.SCHEDULING,
    Bottleneck.HOST_CPU: Layer.SYSTEM,
    Bottleneck.GATEWAY: Layer.SYSTEM,
    Bottleneck.RETRIEVAL: Layer.SYSTEM,
    Bottleneck.RERANK: Layer.SYSTEM,
    Bottleneck.TOOL: Layer.SYSTEM,
    Bottleneck.NETWORK: Layer.SYSTEM,
    Bottleneck.RETRY_AMPLIFICATION: Layer.REQUEST,
    Bottleneck.TIMEOUT_TOO_SHORT: Layer.REQUEST,
    Bottleneck.ENCODER: Layer.MODEL,
    Bottleneck.INTERCONNECT: Layer.KERNEL,
    Bottleneck.KERNEL: Layer.KERNEL,
    Bottleneck.NOISY_NEIGHBOUR: Layer.SCHEDULING,
    Bottleneck.COLD_START: Layer.SYSTEM,
    Bottleneck.CLIENT_LIMIT: Layer.REQUEST,
    Bottleneck.NONE: None,
    Bottleneck.INSUFFICIENT_EVIDENCE: None,
}


class Record(BaseModel):
    """Base of every record that crosses a border: frozen, strict about names, saved as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def save(self, path: Path | str) -> None:
        """Write as JSON, whole or not at all (temporary file, then rename)."""
        write_atomic(Path(path), self.model_dump_json(indent=1))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote.

        Raises:
            InputError: the file is missing or is not such a record.
        """
        try:
            return cls.model_validate_json(read_text(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "(whole file)"
            raise InputError(
                f"is no {cls.__name__} record: {first['msg']}",
                path=path,
                field=where,
                todo=f"Pass a file that sojourn wrote as a {cls.__name__}",
            ) from error

    def _repr_html_(self) -> str:
        cells = ((name, str(getattr(self, name))[:400]) for name in type(self).model_fields)
        rows = "".join(f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in cells)
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"


def words(name: str) -> str:
    """An identifier as words."""
    return name.replace("_", " ")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: temporary file in the same folder, then rename.

    A link is followed, and a device or a pipe is written to; neither is replaced by a file.

    Raises:
        InputError: the folder does not exist or cannot be written, or the file is read-only.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path = path.resolve()
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        if path.is_file() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cannot be written ({getattr(error, 'strerror', error)})",
            path=path,
            todo="Create the folder or choose another path with -o",
        ) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", path=path, todo="Choose another file with -o"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
