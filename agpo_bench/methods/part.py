"""What a part is: one small frozen class whose fields are hyper-parameters and whose call is a formula."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

PartState = dict[str, Any]
"""JSON-able state of a stateful part: floats, ints, strings, lists and dicts of them. Empty for a stateless part."""


class Part(BaseModel):
    """One choice for one slot of a method, told apart from its neighbours by ``use``.

    The class variables say what the part needs from the training loop; ``Method.needs`` unites them. A part keeps no
    state: a stateful one offers ``start()`` and returns the next state beside its value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    use: str

    slot: ClassVar[str] = ""
    needs_probe: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = False
    needs_token_entropy: ClassVar[bool] = False
    needs_step_kl: ClassVar[bool] = False
    needs_pairs: ClassVar[bool] = False
    needs_minibatch_statistics: ClassVar[bool] = False
    needs_token_inputs: ClassVar[bool] = False
    """Whether advantages read token-level inputs (old log-probabilities, mask) and not only rewards."""
    needs_prompt_weights: ClassVar[bool] = False
    min_group_size: ClassVar[int] = 1
    min_updates_per_rollout: ClassVar[int] = 1
    extra_rollouts: ClassVar[int] = 0

    def start(self) -> PartState:
        """State before the first step."""
        return {}
