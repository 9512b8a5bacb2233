"""Where a capacity rests on step times outside what they were seen, or made, for."""

from __future__ import annotations

import numpy as np

from sojourn.capacity.demand import Demand
from sojourn.capacity.records import EngineModel

BEYOND = 1.25
"""A quarter outside the range is still inside what the fit's own error covers."""
LONG = 0.95
"""Share of calls that must lie inside the range of contexts."""


def warnings(engine: EngineModel, asked: Demand, limit: float) -> tuple[str, ...]:
    """Sentences about batches, contexts and chunks beyond `valid_*` of the step model.

    `limit`: sequences the engine may run at once (slots or KV memory). A range of (0, 0) is not
    known, and nothing is said of it.
    """
    step = engine.step
    found = []
    batch = step.valid_batch[1]
    if batch and limit > BEYOND * batch:
        found.append(
            f"Step times are known for batches of {step.valid_batch[0]} to {batch}; full, the"
            f" engine runs {limit:.0f}: beyond {batch} they, and its capacity, are extrapolated"
        )
    if not asked.calls:
        return tuple(found)
    low, high = step.valid_context
    ends = asked.prompt + asked.output
    outside = (ends > BEYOND * high) | (asked.prompt * BEYOND < low)
    share = float((asked.weight * outside).sum() / asked.weight.sum())
    if high and share > 1 - LONG:
        found.append(
            f"{share:.0%} of calls have contexts outside the {low:,} to {high:,} tokens the step"
            " times are known for"
        )
    chunk = step.valid_chunk[1]
    longest = float(np.max(asked.prompt - asked.cached, initial=0.0))
    most = min(float(engine.max_num_batched_tokens), longest)
    if chunk and most > BEYOND * chunk:
        found.append(
            f"Steps may carry up to {most:,.0f} prompt tokens; their cost is known up to {chunk:,}"
        )
    if found and step.to_narrow:
        found.append(f"To narrow it: {step.to_narrow}")
    return tuple(found)
