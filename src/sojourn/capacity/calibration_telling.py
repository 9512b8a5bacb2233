"""What a fit to calls may claim: its step model with spread, range, source, and what to record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity.calibration_front import Front
from sojourn.capacity.calibration_reading import HeldOut, Reading
from sojourn.capacity.engine_calls import EngineCalls
from sojourn.capacity.records import StepModel, StepSpread
from sojourn.interval import Provenance
from sojourn.trace.arrays import Floats

CONFIDENCE: Final = 0.8
LEAST: Final = 0.0005
"""Standard deviation that a step time is known to at best: clocks."""
TYPICAL_REAR: Final = 0.99
WIDE: Final = 0.15
"""A range that reaches farther than this to a side asks for more telemetry."""


@dataclass(frozen=True)
class Claims:
    """The parts that tell a fit: the reading, its calls, errors and front end, the engine's slots
    and how many calls were left out, by reason."""

    reading: Reading
    calls: EngineCalls
    errors: HeldOut
    front: Front
    slots: int
    left_out: dict[str, int]
    shared: str = "load assumed even over unnamed replicas"


def step_model(claims: Claims) -> StepModel:
    """The fit as a step model."""
    fit, calls, cost = claims.reading, claims.calls, claims.reading.cost
    low, high, top = _batches(fit)
    batches = tuple(sorted({0, *(round(k) for k in cost.knots if k < top), low, high, top}))
    bases = cost.decode(np.asarray(batches, dtype=float), np.zeros(len(batches)))
    clean = calls.clean & (calls.output >= 2)
    ends = calls.input[clean], (calls.input + calls.output)[clean]
    chunks = np.minimum(calls.computed[clean], fit.setting.budget)
    table = cost.mixed > 0
    model = StepModel(
        batches=batches,
        base_s=tuple(bases.tolist()),
        slope_s_per_token=(cost.slope,) * len(batches),
        prefill_s_per_token=cost.token,
        prefill_s_per_token_context=cost.attended,
        prefill_tokens=(0, 1, 2) if table else (),  # the last slope goes on: level from 1
        prefill_base_s=(0.0, cost.mixed, cost.mixed) if table else (),
        front_s=claims.front.mean_s,
        front_samples_s=claims.front.samples_s,
        front_load=claims.front.load,
        provenance=Provenance.FITTED,
        source=_source(claims),
        held_out_error=claims.errors.call,
        valid_batch=(low, high),
        valid_context=(int(ends[0].min()), int(ends[1].max())),
        valid_chunk=(int(chunks.min()), int(chunks.max())),
        spread=spread(claims, batches),
    )
    return model.model_copy(update={"to_narrow": to_narrow(claims, model)})


def typical_context(calls: EngineCalls) -> float:
    """Tokens of a decoding sequence half-way through its answer, the mean over clean calls."""
    clean = calls.clean & (calls.output >= 2)
    return float(np.mean((calls.input + calls.output / 2)[clean]))


def _batches(fit: Reading) -> tuple[int, int, int]:
    """Batches at the 1st and 99th percentile of steps, and the largest."""
    batch, steps = fit.batches()
    order = np.argsort(batch)
    share = np.cumsum(steps[order]) / steps.sum()
    low, high = (float(batch[order][np.searchsorted(share, q)]) for q in (0.01, TYPICAL_REAR))
    return max(1, round(low)), max(1, round(high)), max(1, round(float(batch.max())))


def spread(claims: Claims, batches: tuple[int, ...]) -> StepSpread:
    """80% ranges of real over told step times, by blocks of time left out in turn.

    Variance of a logarithm: how well the fit knows the cost (jackknife over blocks), and how much
    blocks differ beyond the noise of their calls (the machine's drift: a run to come is one more
    block). Student's t with the blocks less one.
    Source: Quenouille and Tukey's jackknife; variance components by moments.
    Wrong when: the telemetry spans less time than the machine's drift takes.
    """
    from scipy.special import stdtrit  # noqa: PLC0415  (scipy.stats takes half a second to load)

    costs, errors = claims.errors.costs, claims.errors
    reach = float(stdtrit(max(len(costs) - 1, 1), 0.5 + CONFIDENCE / 2))
    context = typical_context(claims.calls)
    at = np.maximum(np.array(batches, dtype=np.float64), 1.0)
    decode = np.log([cost.decode(at, at * context) for cost in costs])
    chunk = float(np.mean(claims.calls.computed[claims.calls.clean]))
    prompt = np.log(
        [max(c.mixed + c.token * chunk + c.attended * chunk**2 / 2, 1e-12) for c in costs]
    )
    known = np.sqrt(_jackknife(decode) + errors.drift[0] + LEAST**2)
    prefill = float(np.sqrt(_jackknife(prompt[:, None])[0] + errors.drift[1] + LEAST**2))

    def ends(deviation: float) -> tuple[float, float]:
        log = min(reach * deviation, 1.5)
        return float(np.exp(-log)), float(np.exp(log))

    return StepSpread(
        confidence=CONFIDENCE,
        decode=tuple(ends(float(value)) for value in known),
        prefill=ends(prefill),
    )


def _jackknife(values: Floats) -> Floats:
    """Variance of the mean of an estimate made without each block in turn: columns."""
    count = len(values)
    found: Floats = (count - 1) / count * ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    return found


def to_narrow(claims: Claims, model: StepModel) -> str:
    """What to record, cheapest first; empty where nothing is amiss."""
    said: list[str] = []
    low, high = model.valid_batch
    if claims.reading.setting.share != 1.0:
        said.append("name the replica of each call: the load was taken as even over replicas")
    if not claims.reading.setting.scheduled_known:
        said.append(
            "record when each call was scheduled (the engine's own spans): times to first token"
            " alone tell waiting and prefill apart less well"
        )
    if 2 * high <= claims.slots:
        said.append(
            f"record a few minutes at twice the load: batches above {high} were not seen, and the"
            f" engine takes {claims.slots}"
        )
    if low > 2:
        said.append(f"record a quiet minute: batches below {low} were not seen")
    spread = model.spread
    if spread is not None and max(up for _, up in spread.decode) > 1 + WIDE:
        said.append(
            "record for longer: step times of the blocks of this recording differ by more than"
            f" {WIDE:.0%}"
        )
    return "; ".join(said)


def _source(claims: Claims) -> str:
    """One sentence a reader can judge the fit by."""
    fit, calls, errors = claims.reading, claims.calls, claims.errors
    usable = int((calls.clean & (calls.output >= 2)).sum())
    batch, steps = fit.batches()
    mean = np.array([float(np.average(batch, weights=steps))])
    decode = [float(c.decode(mean, mean * 0)[0]) * 1e3 for c in errors.costs]
    token = [c.token * 1e6 for c in errors.costs]
    how = "scheduled times" if fit.setting.scheduled_known else "times to first token alone"
    ahead = ", steps scheduled one ahead" if fit.setting.ahead else ""
    split = "" if fit.setting.share == 1.0 else f", {claims.shared}"
    without = "".join(f", {count} {reason}" for reason, count in claims.left_out.items() if count)
    return (
        f"fitted to {usable} calls of {calls.model or 'the engine'} by"
        f" {how}{ahead}{split}{without};"
        f" held out error {errors.call:.1%} given the load; base at batch {mean[0]:.0f}:"
        f" {min(decode):.2f} to {max(decode):.2f} ms, prompt token {min(token):.1f} to"
        f" {max(token):.1f} us over {len(errors.costs)} fits with a block of time left out"
    )
