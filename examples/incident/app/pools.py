"""Worker pools: back ends that keep a worker until the job is done, wanted or not."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from app.config import PoolConfig

T = TypeVar("T")


def seeded_delay(pool: PoolConfig, *, label: str, at_s: float) -> float:
    """Draw a lognormal service time, s; the same label gives the same time in every run."""
    drawn = math.exp(random.Random(label).gauss(math.log(pool.median_s), pool.sigma))
    return drawn * pool.level(at_s)


@dataclass(frozen=True)
class Job:
    """Whose job it is: a label that seeds its time, and when the load plan had it arrive."""

    label: str
    at_s: float


class WorkerPool:
    """N workers, first come first served.

    A caller that gives up while it waits leaves the queue. A caller that gives up while a
    worker is on its job only stops listening: the worker stays busy to the end of the job, as
    a real search cluster or tool service does that is never told of the client's timeout.
    """

    def __init__(self, name: str, config: PoolConfig) -> None:
        self.name = name
        self.config = config
        self._workers = asyncio.Semaphore(config.workers)
        self._jobs: set[asyncio.Task[object]] = set()

    async def run(self, work: Callable[[], T], *, job: Job, on_wait: Callable[[float], None]) -> T:
        """Run one job. `on_wait` is told the seconds waited for a worker, given up or not.

        `work` is real and done in a thread; the rest of the service time is the seeded delay
        that stands for a remote back end's own time.
        """
        asked = time.perf_counter()
        try:
            await self._workers.acquire()
        finally:
            on_wait(time.perf_counter() - asked)
        delay = seeded_delay(self.config, label=job.label, at_s=job.at_s)
        running = asyncio.create_task(self._serve(work, delay))
        self._jobs.add(running)
        running.add_done_callback(self._jobs.discard)
        return await asyncio.shield(running)

    async def _serve(self, work: Callable[[], T], service_s: float) -> T:
        try:
            started = time.perf_counter()
            result = await asyncio.to_thread(work)
            await asyncio.sleep(max(0.0, service_s - (time.perf_counter() - started)))
            return result
        finally:
            self._workers.release()
