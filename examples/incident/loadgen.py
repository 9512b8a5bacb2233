"""Seeded open-loop load generator. `python loadgen.py -h`.

Open loop: a request is sent at its own time, however many are still open. A client never gives
up before the gateway does, so every request has an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path

import aiohttp
from app.config import load_scenario
from app.task import Task

from workload import make_tasks


async def drive(tasks: list[Task], url: str) -> tuple[Counter[int], float]:
    """Send every task at its time; return the count of answers by status and the worst lateness.

    Lateness, s, is how far the generator itself fell behind its plan: a large value would mean
    that the load was not the planned one.
    """
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    statuses: Counter[int] = Counter()
    late = 0.0
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                await asyncio.sleep(max(0.0, start + task.at_s - time.perf_counter()))
                late = max(late, time.perf_counter() - start - task.at_s)
                group.create_task(_post(session, url, task, statuses))
    return statuses, late


async def _post(
    session: aiohttp.ClientSession, url: str, task: Task, statuses: Counter[int]
) -> None:
    async with session.post(url, json=task.to_json()) as answer:
        await answer.read()
        statuses[answer.status] += 1


def main() -> None:
    """Drive a running gateway with a scenario's load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8200/v1/task")
    arguments = parser.parse_args()
    tasks = make_tasks(load_scenario(arguments.scenario).load)
    statuses, late = asyncio.run(drive(tasks, arguments.url))
    print(f"{len(tasks)} sent, answers by status {dict(statuses)}, at most {late:.3f} s late")


if __name__ == "__main__":
    main()
