"""`ModelSpec`: what a model is made of, as far as time and memory depend on it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sojourn.capacity.vision_records import VisionSpec
from sojourn.interval import Sourced
from sojourn.records import Record


class AttentionKind(StrEnum):
    """How a layer remembers: what it caches per token, and how far back it looks."""

    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"
    LINEAR = "linear"


class AttentionLayers(Record):
    """Equal attention (or linear-attention) layers. Per-layer figures."""

    kind: AttentionKind
    layers: int
    parameters: int
    kv_values_per_token: int = Field(0, description="Cached numbers per token (K and V together).")
    kv_heads: int = Field(1, description="Heads the cache can be split over; 1 for latent.")
    window: int | None = Field(None, description="Tokens it looks back; None: all.")
    score_prefill: int = Field(
        0, description="Multiply-adds per pair of token and context token, prefill form."
    )
    score_decode: int = Field(
        0, description="The same in decode (latent attention works on the latent there)."
    )
    state_bytes_per_request: int = Field(
        0, description="Constant memory per request (linear layers, windows beside a cache), bytes."
    )
    top_k: int | None = Field(
        None, description="Tokens it attends to of those cached (sparse attention); None: all."
    )
    index_bytes_per_token: int = Field(
        0, description="Cached bytes per token of the indexer that chooses them, all ranks each."
    )
    index_score: int = Field(
        0, description="Multiply-adds of the indexer per pair of token and context token, 8 bits."
    )

    @classmethod
    def matrix(cls, parameters: int) -> AttentionLayers:
        """A layer whose attention was replaced by one matrix: no cache, no state."""
        return cls(kind=AttentionKind.LINEAR, layers=0, parameters=parameters)


class MlpLayers(Record):
    """Equal feed-forward layers. Per-layer figures."""

    layers: int
    dense_parameters: int = Field(description="Used by every token: dense, shared, router.")
    experts: int = 0
    experts_per_token: int = 0
    expert_parameters: int = Field(0, description="Of one expert.")


class ModelSpec(Record):
    """A model. Counts of parameters are computed from its config.

    `checkpoint_dtype` is how its published weights are stored: bf16, fp16, fp32, fp8, int8,
    int4, mxfp4, nvfp4.
    """

    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    intermediate_size: int = Field(description="Widest feed-forward one token passes, all in all.")
    max_model_len: int | None
    attention: tuple[AttentionLayers, ...]
    mlp: tuple[MlpLayers, ...]
    embedding_parameters: int
    head_parameters: int = Field(description="Of the output head; 0 when tied to the embedding.")
    norm_parameters: int = Field(description="Of norms, and of tables looked up in each layer.")
    vision: VisionSpec | None = Field(None, description="The image encoder, where it has one.")
    vision_parameters: int = Field(0, description="Of image and audio encoders and projectors.")
    audio_tokens_per_s: float | None = Field(None, description="Tokens per second of sound.")
    mtp_parameters: int = Field(
        0, description="Of the multi-token-prediction layers; loaded for speculation only."
    )
    checkpoint_dtype: str = "bf16"
    part_dtypes: dict[str, str] = Field(
        default_factory=dict,
        description="Parts of the blocks that the checkpoint stores in another format: attention,"
        " dense (dense and shared feed-forward), experts.",
    )
    source: str
    facts: dict[str, Sourced] = Field(
        default_factory=dict, description="Published figures, with their source."
    )

    def part_dtype(self, part: str, dtype: str) -> str:
        """Format of a part (attention, dense, experts) when the weights are held in `dtype`: what
        the checkpoint keeps otherwise stays so; a 16-bit checkpoint is quantised as a whole."""
        return self.part_dtypes.get(part, dtype) if dtype == self.checkpoint_dtype else dtype

    @property
    def layers(self) -> int:
        """Blocks that end in an all-reduce under tensor parallelism: attention and MLP, halved."""
        blocks = sum(a.layers for a in self.attention) + sum(m.layers for m in self.mlp)
        return (blocks + 1) // 2

    @property
    def attention_parameters(self) -> int:
        """Of all attention and linear-attention layers."""
        return sum(a.layers * a.parameters for a in self.attention)

    @property
    def dense_mlp_parameters(self) -> int:
        """Of all feed-forward layers, routed experts left out."""
        return sum(m.layers * m.dense_parameters for m in self.mlp)

    @property
    def expert_parameters(self) -> int:
        """Of all routed experts."""
        return sum(m.layers * m.experts * m.expert_parameters for m in self.mlp)

    @property
    def block_parameters(self) -> int:
        """Matrix parameters of the blocks that every token uses."""
        return self.attention_parameters + self.dense_mlp_parameters

    @property
    def parameters(self) -> int:
        """All parameters, the vision encoder included."""
        return (
            self.block_parameters
            + self.expert_parameters
            + self.embedding_parameters
            + self.head_parameters
            + self.norm_parameters
            + self.vision_parameters
        )

    @property
    def active_block_parameters(self) -> int:
        """Matrix parameters one token is multiplied with in the blocks (no embedding, no head)."""
        routed = sum(m.layers * m.experts_per_token * m.expert_parameters for m in self.mlp)
        return self.block_parameters + routed

    @property
    def output_parameters(self) -> int:
        """Matrix parameters of the step from hidden state to vocabulary (tied or not)."""
        return self.head_parameters or self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """As model cards count it: everything but the experts a token is not sent to."""
        return (
            self.active_block_parameters
            + self.embedding_parameters
            + self.head_parameters
            + self.norm_parameters
        )
