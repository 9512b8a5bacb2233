"""What one mean request of a profile asks of the engine and of the stations, per attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sojourn.capacity.records import StepModel
from sojourn.workload.profile_records import BucketProfile, Profile, StepKind

MAX_TEMPLATES: Final = 2_000
"""Programs read per bucket: the mean of 2,000 is within 2% at the variation seen in traces."""


Row = tuple[float, float, float, float, float]
"""Weight, prompt, cached, written and image tokens of a call."""


@dataclass(frozen=True)
class Demand:
    """Model calls of the mix, with weights in calls per attempt of a mean request.

    `visits` are station visits per attempt of a mean request; `image` tokens of its images are
    part of the prompt (unknown, 0, where a bucket has no programs).
    """

    weight: NDArray[np.float64]
    prompt: NDArray[np.float64]
    cached: NDArray[np.float64]
    output: NDArray[np.float64]
    visits: dict[str, float]
    from_templates: bool
    image: NDArray[np.float64]

    @property
    def calls(self) -> float:
        """Calls per attempt."""
        return float(self.weight.sum())

    def mean(self, values: NDArray[np.float64]) -> float:
        """Mean over calls."""
        return float((self.weight * values).sum() / self.weight.sum()) if self.calls else 0.0

    @property
    def output_mean(self) -> float:
        """Tokens written per call."""
        return self.mean(self.output)

    @property
    def context_mean(self) -> float:
        """Mean context of a running decode, weighted by the steps it takes part in."""
        steps = self.weight * self.output
        if not steps.sum():
            return self.mean(self.prompt)
        return float((steps * (self.prompt + self.output / 2)).sum() / steps.sum())

    def prefill_s(self, step: StepModel) -> NDArray[np.float64]:
        """Engine time of each call's prompt."""
        return step.prefill_s(self.prompt, self.cached)


def demand(profile: Profile) -> Demand:
    """From the programs seen in the data; where a bucket has none, from its summaries."""
    rows: list[Row] = []
    visits: dict[str, float] = {}
    complete = True
    total = sum(bucket.share for bucket in profile.buckets.values()) or 1.0
    hit = profile.prefix.hit_share if profile.prefix else 0.0
    for bucket in profile.buckets.values():
        share = bucket.share / total
        if bucket.templates:
            _from_templates(bucket, share, rows, visits)
        elif bucket.requests:
            complete = False
            rows.append(_from_summary(bucket, share, hit))
    if not complete:
        made = profile.attempts_per_request.mid  # the stations' counts hold every attempt
        visits = {name: s.visits_per_request / made for name, s in profile.stations.items()}
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    table = table[table[:, 0] > 0]
    return Demand(
        weight=table[:, 0],
        prompt=table[:, 1],
        cached=table[:, 2],
        output=table[:, 3],
        visits=visits,
        from_templates=complete,
        image=table[:, 4],
    )


def _from_templates(
    bucket: BucketProfile,
    share: float,
    rows: list[Row],
    visits: dict[str, float],
) -> None:
    stride = -(-len(bucket.templates) // MAX_TEMPLATES)
    chosen = bucket.templates[::stride]
    each = share / len(chosen)
    for template in chosen:
        for step in template.steps:
            if step.kind is StepKind.CALL:
                rows.append(
                    (
                        each,
                        float(step.input_tokens),
                        float(step.cached_tokens),
                        float(step.output_tokens),
                        float(step.image_tokens),
                    )
                )
            elif step.kind is StepKind.STATION:
                visits[step.name] = visits.get(step.name, 0.0) + each


def _from_summary(bucket: BucketProfile, share: float, hit: float) -> Row:
    calls = bucket.calls_per_request
    prompt = bucket.input.mean / calls if calls else 0.0
    output = bucket.output.mean / calls if calls else 0.0
    return (share * calls, prompt, hit * prompt, output, 0.0)
