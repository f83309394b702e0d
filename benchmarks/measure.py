"""Running two sides of a comparison in processes of their own, one after the other, again and again.

A side is ``python benchmarks/<script>.py --side NAME …``; it prints one ``Measurement`` as its last line. The first
batch of a side is left out by the side itself: compilers, allocators and caches are warm when the clock starts.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one process of one side did."""

    tokens: int
    """Generated tokens, terminators included; items for an evaluation."""
    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    """Largest resident memory of the whole process, imports included."""
    training_tokens: int = 0
    """Those of ``tokens`` that were trained on."""


class Stopwatch:
    """CPU and wall seconds of the blocks it times; children count once they have ended."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.wall_seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the block's time."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu_seconds += time.process_time() - cpu
        self.wall_seconds += time.perf_counter() - wall

    def measurement(self, *, tokens: int, training_tokens: int = 0) -> Measurement:
        """Of this process, as it stands now."""
        return Measurement(
            tokens=tokens,
            training_tokens=training_tokens,
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


def report(measurement: Measurement) -> None:
    """Hand a side's result to the process that started it."""
    print("\n" + json.dumps(asdict(measurement)), flush=True)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The repeats of two sides."""

    name: str
    ours: list[Measurement]
    peer: list[Measurement]
    target: float | None
    """The ratio to reach; for memory, to stay under. None where there is none."""
    what: str
    """``tokens/s``, ``training tokens/s``, ``seconds`` or ``peak memory``."""

    @property
    def ratio(self) -> float:
        """Ours over the peer's, medians of CPU time (peak memory: of bytes)."""
        return self._ratio("cpu_seconds")

    @property
    def wall_ratio(self) -> float:
        """The same in wall time."""
        return self._ratio("wall_seconds")

    @property
    def is_reached(self) -> bool:
        """Whether the ratio meets its target, if it has one."""
        if self.target is None:
            return True
        return self.ratio <= self.target if self.what == "peak memory" else self.ratio >= self.target

    def _ratio(self, clock: str) -> float:
        ours, peer = (self._value(side, clock) for side in (self.ours, self.peer))
        return peer / ours if self.what == "seconds" else ours / peer

    def _value(self, side: list[Measurement], clock: str) -> float:
        def value(m: Measurement) -> float:
            if self.what == "peak memory":
                return float(m.peak_bytes)
            seconds: float = getattr(m, clock)
            if self.what == "seconds":
                return seconds
            return (m.training_tokens if self.what == "training tokens/s" else m.tokens) / seconds

        return statistics.median(value(m) for m in side)

    def row(self) -> str:
        """One line of the Markdown table."""
        ours, peer = (self._shown(side) for side in (self.ours, self.peer))
        bound, mark = "–", "–"
        if self.target is not None:
            bound = f"{'≤' if self.what == 'peak memory' else '≥'} {self.target:g}"
            mark = "yes" if self.is_reached else "**no**"
        return (
            f"| {self.name} | {self.what} | {ours} | {peer} | **{self.ratio:.2f}** | {self.wall_ratio:.2f} | {bound} "
            f"| {mark} |"
        )

    def _shown(self, side: list[Measurement]) -> str:
        value = self._value(side, "cpu_seconds")
        if self.what == "peak memory":
            return f"{value / 2**20:,.0f} MiB"
        return f"{value:.1f} s" if self.what == "seconds" else f"{value:,.0f}"


HEADER = (
    "| comparison | what | ours | peer | ratio (CPU time) | ratio (wall) | target | reached |\n"
    "|---|---|---|---|---|---|---|---|"
)


def table(comparisons: Sequence[Comparison]) -> str:
    """All comparisons as Markdown."""
    return "\n".join([HEADER, *(comparison.row() for comparison in comparisons)])


def alternate(script: str, *sides: str, repeats: int, options: Sequence[str] = ()) -> dict[str, list[Measurement]]:
    """A, B, A, B …: a slow minute of the machine falls on all sides."""
    results: dict[str, list[Measurement]] = {side: [] for side in sides}
    for number in range(repeats):
        for side, found in results.items():
            found.append(run_side(script, side, options))
            print(f"{script} {' '.join(options)} {side} {number + 1}/{repeats}: {found[-1]}", file=sys.stderr)
    return results


def compared(script: str, *, repeats: int, options: Sequence[str] = ()) -> tuple[list[Measurement], list[Measurement]]:
    """The sides ``ours`` and ``peer`` of a script."""
    results = alternate(script, "ours", "peer", repeats=repeats, options=options)
    return results["ours"], results["peer"]


def run_side(script: str, side: str, options: Sequence[str] = ()) -> Measurement:
    """One process of one side, on one thread and without a network."""
    command = [sys.executable, str(HERE / script), "--side", side, *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return Measurement(**json.loads(done.stdout.strip().rsplit("\n", 1)[-1]))


def environment() -> dict[str, str]:
    """For every process of every side."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
