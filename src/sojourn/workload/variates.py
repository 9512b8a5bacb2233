"""Distributions as data, and draws from them that depend on their key alone.

A draw is the quantile function at a uniform number; uniforms come from a generator keyed by
(seed, class, purpose). So two scenarios that differ in one thing draw the same everything else,
and a distribution that is changed keeps who is large and who is small (common random numbers).
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sojourn.trace.arrays import Floats

MOST_CV: Final = 100.0
"""A gamma distribution past it is zero but for one draw in ten thousand."""
STRATA: Final = 500
"""Draws that stand for a distribution where a table of samples is wanted."""


class Section(BaseModel):
    """A part of a file that people write: frozen, no unknown key, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Law(Section):
    """A distribution of numbers >= 0. `least` and `most` cut it: what lies beyond is moved to the
    bound, so the mean of what is drawn is no longer the one asked for."""

    least: float = Field(0.0, ge=0, description="Smaller draws become this.")
    most: float | None = Field(None, ge=0, description="Larger draws become this.")

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.most is not None and self.most < self.least:
            raise ValueError("most must not be below least")
        return self

    def quantile(self, share: Floats) -> Floats:
        """The value at each share in [0, 1)."""
        most = math.inf if self.most is None else self.most
        return np.asarray(np.clip(self._quantile(share), self.least, most), dtype=np.float64)

    def _quantile(self, share: Floats) -> Floats:
        raise NotImplementedError

    def strata(self, count: int = STRATA) -> Floats:
        """`count` equally likely values: the quantiles at the middle of equal strata."""
        return self.quantile((np.arange(count) + 0.5) / count)


class Fixed(Law):
    """Always the same."""

    distribution: Literal["fixed"]
    value: float = Field(ge=0, description="The value.")

    def _quantile(self, share: Floats) -> Floats:
        return np.full(share.shape, self.value)


class Uniform(Law):
    """All values between two alike."""

    distribution: Literal["uniform"]
    low: float = Field(ge=0, description="The smallest.")
    high: float = Field(ge=0, description="The largest.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError("high must not be below low")
        return self

    def _quantile(self, share: Floats) -> Floats:
        return self.low + (self.high - self.low) * share


class Exponential(Law):
    """Memoryless: standard deviation equals mean."""

    distribution: Literal["exponential"]
    mean: float = Field(gt=0, description="The mean.")

    def _quantile(self, share: Floats) -> Floats:
        return np.asarray(-self.mean * np.log1p(-share))


class Lognormal(Law):
    """Skewed with a heavy tail: token counts and service times look like it."""

    distribution: Literal["lognormal"]
    mean: float = Field(gt=0, description="The mean (not of the logarithm).")
    cv: float = Field(ge=0, le=MOST_CV, description="Standard deviation over mean.")

    def _quantile(self, share: Floats) -> Floats:
        """exp(mu + s z), s^2 = ln(1 + cv^2), mu = ln(mean) - s^2/2, z the normal quantile."""
        from scipy.special import ndtri  # noqa: PLC0415  (scipy loads 0.1 s: only where drawn)

        variance = math.log1p(self.cv**2)
        z = ndtri(np.clip(share, 2.0**-54, None))
        return np.asarray(np.exp(math.log(self.mean) - variance / 2 + math.sqrt(variance) * z))


class Gamma(Law):
    """From nearly fixed (cv near 0) over exponential (cv 1) to bursty (cv above 1)."""

    distribution: Literal["gamma"]
    mean: float = Field(gt=0, description="The mean.")
    cv: float = Field(gt=0.01, le=MOST_CV, description="Standard deviation over mean.")

    def _quantile(self, share: Floats) -> Floats:
        """Shape 1/cv^2, scale mean cv^2."""
        from scipy.special import gammaincinv  # noqa: PLC0415  (as above)

        return np.asarray(gammaincinv(self.cv**-2, share) * self.mean * self.cv**2)


class Samples(Law):
    """Values that were seen, each as likely."""

    distribution: Literal["samples"]
    values: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        min_length=1, description="The values seen."
    )

    def _quantile(self, share: Floats) -> Floats:
        ordered = np.sort(np.array(self.values, dtype=np.float64))
        return np.asarray(ordered[(share * ordered.size).astype(np.int64)])


class Quantiles(Law):
    """Between known quantiles on a straight line: what a dashboard tells."""

    distribution: Literal["quantiles"]
    quantiles: dict[float, Annotated[float, Field(ge=0)]] = Field(
        min_length=2, description="share: value, such as {0: 20, 0.5: 300, 0.99: 6000, 1: 9000}."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        shares = sorted(self.quantiles)
        if shares[0] != 0 or shares[-1] != 1:
            raise ValueError("quantiles must begin at 0 and end at 1 (the least and the largest)")
        values = [self.quantiles[share] for share in shares]
        if values != sorted(values):
            raise ValueError("the value must not fall where the share rises")
        return self

    def _quantile(self, share: Floats) -> Floats:
        shares = sorted(self.quantiles)
        return np.interp(share, shares, [self.quantiles[at] for at in shares])


class _NumberToo:
    """A number stands for a fixed distribution."""

    @staticmethod
    def _spelled(value: Any) -> Any:  # noqa: ANN401  (whatever the file holds)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"distribution": "fixed", "value": value}
        return value

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._spelled, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "minimum": 0}, handler(schema)]}


LAWS: Final = (Fixed, Uniform, Exponential, Lognormal, Gamma, Samples, Quantiles)
Distribution: TypeAlias = Annotated[
    Fixed | Uniform | Exponential | Lognormal | Gamma | Samples | Quantiles,
    Field(discriminator="distribution"),
    _NumberToo(),
]


def fixed(value: float) -> Fixed:
    """The distribution of one value."""
    return Fixed(distribution="fixed", value=value)


def generator(seed: int, *key: str) -> np.random.Generator:
    """The generator of one purpose: equal for equal keys, independent for others.

    Source: numpy's SeedSequence, made to tell streams apart by words of entropy.
    """
    digests = (hashlib.blake2b(part.encode(), digest_size=8).digest() for part in key)
    words = [seed, len(key), *(int.from_bytes(digest, "little") for digest in digests)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def drawn(law: Law, count: int, seed: int, *key: str) -> Floats:
    """`count` draws; the first n of them are the same for every count >= n."""
    return law.quantile(generator(seed, *key).random(count))
