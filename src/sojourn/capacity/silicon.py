"""Step times from measured operator tables (optional extra `[silicon]`), behind our border.

Second of three sources: a fit to telemetry wins over it, the roofline follows where it does not
cover the hardware. Queries are cleaned by `silicon_guards`, put into lines by `silicon_fit`, and
the time of the host, which no operator table holds, is added from `silicon_host`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sojourn.capacity import silicon_host, silicon_query, silicon_tables
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory import memory, weight_dtype
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.capacity.roofline import GRAPH_TOKENS
from sojourn.capacity.roofline_constants import CONSTANTS, engine_kind
from sojourn.capacity.roofline_matrices import launched
from sojourn.capacity.roofline_setting import Setting, setting_of
from sojourn.capacity.silicon_fit import (
    BATCHES,
    CONTEXTS,
    Decode,
    Prompts,
    decode_lines,
    prompt_costs,
)
from sojourn.capacity.silicon_guards import Reduces, bounded, bounds_s, monotone
from sojourn.capacity.silicon_host import Host
from sojourn.capacity.silicon_query import Asked
from sojourn.capacity.silicon_tables import Query, Refused, StepTables
from sojourn.config import Deployment
from sojourn.errors import SojournError
from sojourn.interval import Excuse, Provenance
from sojourn.trace.arrays import Floats

MEAN_CONTEXT: Final = 1024.0
"""Context around which lines are fitted where the caller names none."""
TODAY: Final = ("vllm async", "sglang", "trtllm")
"""Engines new enough to have taken over each other's kernels for experts."""
POOL_SLACK: Final = 1.5
"""Grid points whose contexts need more than this many KV pools are not asked for."""


def step_model(
    model: ModelSpec,
    gpu: Gpu,
    deployment: Deployment,
    *,
    mean_context: float | None = None,
    host: Host | None = None,
) -> StepModel | Excuse:
    """Step times of one data-parallel rank from measured operators, s; an `Excuse` where the
    tables are not installed, do not cover it, or no guard can mend what they say.

    `mean_context`: tokens of a decoding sequence, where known; lines are fitted around it. `host`:
    times beyond the operators; None: those of the engine's version.
    """
    try:
        build = _Build(model, gpu, deployment, mean_context or MEAN_CONTEXT, host)
        return build.model()
    except Refused as refused:
        return Excuse(
            reason=f"no step times from operator tables: {refused}",
            collect=("a fit to telemetry (`sojourn calibrate`)",),
        )


def missing() -> str | None:
    """Why no tables can be asked here at all; None: they can."""
    try:
        silicon_tables.check_installed()
    except Refused as refused:
        return str(refused)
    return None


@dataclass
class _Build:
    """One step model in the making; `notes` gathers what the guards did."""

    model_spec: ModelSpec
    gpu: Gpu
    deployment: Deployment
    context: float
    host: Host | None = None
    notes: list[str] = field(default_factory=list)

    def model(self) -> StepModel:
        """The finished model.

        Raises:
            Refused: as `step_model`'s excuses.
        """
        asked, query, tables = self._tables()
        reduces = Reduces(self._setting())
        decode = self._decode(tables, reduces)
        prompts = self._prompts(tables, reduces)
        if note := reduces.note():
            self.notes.append(note)
        return self._step(asked, query, tables, (decode, prompts))

    def _tables(self) -> tuple[Asked, Query, StepTables]:
        """The engine's own tables (another's where it has none for the shape), shared kernels by
        the fastest of all engines'.

        Raises:
            Refused: no engine's tables answer; the reason of its own.
        """
        own = silicon_query.asked(self.model_spec, self.gpu, self.deployment)
        names = sorted(silicon_query.BACKENDS, key=lambda name: name != own.backend)
        found: list[tuple[Asked, Query, StepTables]] = []
        reasons: list[Refused] = []
        for name in names:
            named = self.deployment.model_copy(update={"engine": name})
            try:
                asked = silicon_query.asked(self.model_spec, self.gpu, named)
                query, tables = _first_that_answers(asked)
            except Refused as refused:
                reasons.append(refused)
                continue
            found.append((asked, query, tables))
        if not found:
            raise reasons[0]
        asked, query, tables = found[0]
        if asked.backend != own.backend:
            self.notes.append(
                f"{own.backend} has no tables of it, those of {asked.backend} stand in"
            )
        others = [each for _, _, each in found[1:]]
        today = engine_kind(self.deployment.engine) in TODAY
        return asked, query, silicon_tables.Fastest(tables, others, experts=today)

    def _setting(self) -> Setting:
        """What the roofline knows of the deployment: its links, its engine's launches."""
        return setting_of(
            self.model_spec, self.gpu, self.deployment, mean_context=self.context,
            constants=CONSTANTS,
        )  # fmt: skip

    def _pool_tokens(self) -> float:
        """Tokens the KV pool of one rank holds.

        Raises:
            Refused: the deployment does not fit the card.
        """
        try:
            held = memory(self.model_spec, self.gpu, self.deployment)
        except SojournError as error:
            raise Refused(str(error)) from error
        return float(held.kv_tokens) or math.inf

    def _decode(self, tables: StepTables, reduces: Reduces) -> Decode:
        """The decode grid, cleaned, as lines."""
        pool, setting = POOL_SLACK * self._pool_tokens(), self._setting()
        launches = 0.0
        if setting.eager or not setting.engine.graphs:
            launches = setting.engine.launch_s * launched(setting)
        shape = (len(BATCHES), len(CONTEXTS))
        times, floors, limits = (np.full(shape, np.nan) for _ in range(3))
        for i, batch in enumerate(BATCHES):
            for j, context in enumerate(CONTEXTS):
                if j > 2 and batch * context > pool:
                    continue
                told = reduces.total_s(tables.decode(batch, context), batch)
                times[i, j] = max(told, launches)
                floors[i, j], limits[i, j] = bounds_s(
                    setting, self.deployment, batch=batch, context=context
                )
        asked = np.isfinite(times)
        mended, change = monotone(_filled(times))
        if change > 0:
            self.notes.append(f"monotone in batch and context: median change {change:.1%}")
        inside, note = bounded(mended[asked], floors[asked], limits[asked])
        if note:
            self.notes.append(note)
        times[asked] = inside
        return decode_lines(times, self.context)

    def _prompts(self, tables: StepTables, reduces: Reduces) -> Prompts:
        """Prompt costs; without a CUDA graph no step is shorter than its launches."""
        context = round(self.context)
        setting = self._setting()
        launches = setting.engine.launch_s * launched(setting)

        def graphless(tokens: int, told: float) -> float:
            return max(told, launches) if tokens > GRAPH_TOKENS else told

        return prompt_costs(
            lambda n, prefix: graphless(n, reduces.total_s(tables.prefill(n, prefix), n)),
            lambda n, batch: graphless(
                n, reduces.total_s(tables.mixed(n, batch, max(context, n + 1)), n + batch)
            ),
            lambda batch: reduces.total_s(tables.decode(batch, context), batch),
            longest=16384,
        )

    def _step(
        self, asked: Asked, query: Query, tables: StepTables, parts: tuple[Decode, Prompts]
    ) -> StepModel:
        decode, prompts = parts
        host = self.host or silicon_host.host_of(self.deployment.engine)
        dtype = weight_dtype(self.model_spec, self.deployment)
        fixed = silicon_host.fixed_s(host, self.model_spec, self.gpu, self.deployment, dtype)
        each = silicon_host.sequence_s(host, self.model_spec)
        per_token = _per_token(prompts)
        table = prompts.added_s - per_token * np.asarray(prompts.tokens)
        batches = (0, *BATCHES)
        base = [prompts.base_s, *decode.base_s]
        return StepModel(
            batches=batches,
            base_s=tuple(float(b) + each * batch for b, batch in zip(base, batches, strict=True)),
            slope_s_per_token=(float(decode.slope_s[0]), *(float(s) for s in decode.slope_s)),
            prefill_s_per_token=per_token,
            prefill_s_per_token_context=prompts.attended_s,
            prefill_tokens=prompts.tokens,
            prefill_base_s=tuple(float(max(v, 0.0)) for v in table),
            host_s=fixed,
            front_s=self._setting().engine.front_s,
            provenance=Provenance.CATALOGUE,
            source=self._source(asked, query, tables, parts),
            held_out_error=silicon_host.HELD_OUT_ERROR,
            valid_batch=(1, BATCHES[-1]),
            valid_context=(1, CONTEXTS[-1]),
            valid_chunk=(1, prompts.tokens[-1]),
            spread=silicon_host.spread(batches),
            to_narrow="Record a short run of this deployment (TTFT, end and tokens of requests)"
            " and calibrate: the tables hold single operators, not this server.",
        )

    def _source(
        self, asked: Asked, query: Query, tables: StepTables, parts: tuple[Decode, Prompts]
    ) -> str:
        decode, prompts = parts
        dtype = weight_dtype(self.model_spec, self.deployment)
        wanted = self.deployment.kv_dtype
        kv = query.kv + ("" if _same_kv(query.kv, wanted) else f" (the tables lack {wanted})")
        layout = (
            f"TP {query.tp}, PP {query.pp}, DP {query.dp},"
            f" experts TP {query.moe_tp} EP {query.moe_ep}"
        )
        missed = (
            f"lines miss the decode grid by {decode.median_error:.1%} (median;"
            f" {decode.largest_error:.0%} at most), sums miss mixed steps by"
            f" {prompts.median_error:.1%} ({prompts.largest_error:.0%} at most)"
        )
        said = (
            f"operator tables of {silicon_tables.PACKAGE} {silicon_tables.VERSION}"
            f" ({asked.backend} {tables.version} on {asked.system}): {self.model_spec.name} as"
            f" {asked.like}, weights {dtype}, KV cache {kv}, {layout}; shared kernels by the"
            f" fastest engine; host time of {self.deployment.engine} added; {missed}"
        )
        return "; ".join((said, *self.notes))


def _first_that_answers(asked: Asked) -> tuple[Query, StepTables]:
    """The first of the queries whose tables hold a decode and a prefill step.

    Raises:
        Refused: none does; the reason of the first.
    """
    reasons: list[str] = []
    for query in asked.queries:
        try:
            tables = silicon_tables.open_tables(query)
            tables.decode(1, 1024)
            tables.prefill(1024, 0)
        except Refused as refused:
            reasons.append(str(refused))
            continue
        return query, tables
    raise Refused(reasons[0])


def _same_kv(told: str, wanted: str) -> bool:
    return (told == "fp8") == wanted.startswith("fp8")


def _filled(times: Floats) -> Floats:
    """Points not asked for as long as the longer of their neighbours before them, so that they
    pull no other when all are made to rise."""
    filled = times.copy()
    for i, j in zip(*np.nonzero(~np.isfinite(times)), strict=True):
        below = filled[i - 1, j] if i else 0.0
        filled[i, j] = max(filled[i, j - 1], below)
    return filled


def _per_token(prompts: Prompts) -> float:
    """The least any number of tokens costs per token: what is left for the table is >= 0."""
    tokens = np.asarray(prompts.tokens[1:], dtype=np.float64)
    return float(np.min(prompts.added_s[1:] / tokens))
