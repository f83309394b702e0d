"""What a method remembers from step to step."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class MethodState(BaseModel):
    """State of each stateful part; JSON-able, part of every checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: dict[str, Any]
    clip: dict[str, Any]
    kl: dict[str, Any]
    advantage: dict[str, Any]
    shaping: dict[str, Any]

    def to_json(self) -> str:
        """As one JSON object; floats round-trip to the same bits."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> MethodState:
        """Inverse of ``to_json``."""
        return cls.model_validate_json(text)
