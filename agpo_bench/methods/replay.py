"""A logged schedule read back from another run's ``metrics.jsonl``."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=16)
def _read(path: str, key: str, modified_ns: int) -> tuple[float, ...]:
    values = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # a killed run may leave a torn last line
        if not isinstance(record, dict) or not isinstance(record.get(key), int | float):
            raise ValueError(f"{path} line {number} has no {key!r}; replay needs the log of a run with that controller")
        values.append(float(record[key]))
    return tuple(values)


def read_schedule(path: str | None, key: str) -> tuple[float, ...]:
    """The values of one metric, one a step. ValueError if the log is missing, empty or lacks the metric."""
    if path is None or "{" in path:
        raise ValueError(
            f"replay of {key!r} needs a log: --set temperature.path=…/metrics.jsonl and clip.path likewise"
        )
    file = Path(path)
    if not file.is_file():
        raise ValueError(
            f"no log {path} to replay {key!r} from; train agpo first or --set temperature.path / clip.path"
        )
    values = _read(str(file), key, file.stat().st_mtime_ns)
    if not values:
        raise ValueError(f"{path} has no complete line; nothing to replay {key!r} from")
    return values
