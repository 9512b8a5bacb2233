"""Starts and stops the processes of a recording, each within its share of the processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000
SHARES = 88_761
"""The weight of a process of the highest priority: without it the group would weigh only 1024."""
HERE = Path(__file__).resolve().parent.parent
CORE_NAME = "VLLM::EngineCor"
"""The kernel's (15 character) name of vLLM's engine core process."""


@dataclass(frozen=True)
class EngineFlags:
    """The engine's settings, written into every recording."""

    max_num_seqs: int = 12
    max_num_batched_tokens: int = 512
    max_model_len: int = 4_096
    block_size: int = 128
    num_gpu_blocks: int = 384
    prefix_caching: bool = True
    more: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return them as `vllm serve` arguments."""
        return [
            f"--max-num-seqs={self.max_num_seqs}",
            f"--max-num-batched-tokens={self.max_num_batched_tokens}",
            f"--max-model-len={self.max_model_len}",
            f"--block-size={self.block_size}",
            f"--num-gpu-blocks-override={self.num_gpu_blocks}",
            "--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching",
            "--enable-prompt-tokens-details",
            "--enforce-eager",
            "--load-format=dummy",
            *self.more,
        ]


@dataclass
class Replica:
    """A running engine replica. `cpu_budget` is the share of a core its core process may use."""

    name: str
    port: int
    cpu_budget: float
    process: subprocess.Popen[bytes]
    log: Path
    core_pid: int = 0

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_pid(self) -> int:
        """The process that holds the HTTP server, tokenizer and detokenizer."""
        return self.process.pid


@dataclass
class Machine:
    """Everything that was started, so that exactly that is stopped."""

    scratch: Path
    notes: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    groups: list[Path] = field(default_factory=list)

    def spawn(
        self, command: list[str], log: Path, extra: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process with its output in a file."""
        environment = {**os.environ, **extra}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=HERE
            )
        self.started.append(process)
        return process

    def limit(self, pid: int, core: int, budget: float) -> float:
        """Pin a process to a core and give it a share of it; return the share it really got."""
        pin(pid, core)
        group = CGROUP / f"sojourn-{os.getpid()}-{core}"
        try:
            group.mkdir()
            self.groups.append(group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * budget)), encoding="ascii")
            (group / "cpu.shares").write_text(str(SHARES), encoding="ascii")
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError as error:
            self.notes.append(f"no CPU quota ({error.strerror}): engine core {core} is only pinned")
            return 1.0
        return budget

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self.started):
            process.terminate()
        for process in reversed(self.started):
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.started.clear()
        for group in self.groups:
            _remove_when_empty(group)
        self.groups.clear()


def start_engine(
    machine: Machine,
    index: int,
    model: Path,
    otlp: str,
    flags: EngineFlags,
    environment: Mapping[str, str] | None = None,
) -> Replica:
    """Start replica `index` on core `index`; it is not up yet (see `settle`)."""
    name, port = f"vllm-{index}", 8_123 + index
    # One process for scheduling and forward pass: vLLM's separate CPU worker would spin while it
    # waits for work, and its CPU time would then say nothing about how busy the engine is.
    extra = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": str(index),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOG_STATS_INTERVAL": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={name}",
        **(environment or {}),
    }
    vllm = str(Path(sys.executable).with_name("vllm"))
    command = [vllm, "serve", str(model), "--served-model-name=sojourn-tiny", *flags.arguments()]
    command += ["--host=127.0.0.1", f"--port={port}", f"--otlp-traces-endpoint={otlp}"]
    log = machine.scratch / f"{name}.log"
    return Replica(name, port, 1.0, machine.spawn(command, log, extra), log)


def settle(machine: Machine, replica: Replica, core: int, budget: float) -> None:
    """Wait for a replica to answer, then give its core process its share of the processor."""
    find_core(replica)
    replica.cpu_budget = machine.limit(replica.core_pid, core, budget)


def find_core(replica: Replica) -> None:
    """Wait for a replica to answer and note which process is its engine core."""
    wait_for(f"{replica.url}/health", replica.process, timeout_s=240)
    replica.core_pid = next(
        pid for pid in descendants(replica.process.pid) if _process_name(pid) == CORE_NAME
    )


def pin(pid: int, core: int) -> None:
    """Keep all threads of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def wait_for(url: str, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Poll a URL until it answers; raise if its process ends or the time is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"process for {url} ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise TimeoutError(f"{url} did not answer within {timeout_s:.0f} s")


def descendants(pid: int) -> list[int]:
    """Return the process ids of all children, grandchildren and so on."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def _children(pid: int) -> Iterable[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from (int(value) for value in path.read_text(encoding="ascii").split())


def _process_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


def raise_priority() -> bool:
    """Ask for the highest priority for this process and its children; False if not allowed."""
    try:
        os.nice(-20)
    except PermissionError:
        return False
    return True


def _remove_when_empty(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return
