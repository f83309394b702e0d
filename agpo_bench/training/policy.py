"""Log-probabilities, entropies and values of given responses, with gradients.

Shapes: B sequences, T response tokens (right padded), M response tokens of all sequences end to end, N all tokens.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from agpo_bench.files import write_whole
from agpo_bench.rollout.adapters import has_adapters, is_adapter_weight, merged_weights, save_adapters, without_adapters
from agpo_bench.training.forward import Forward, make_forward
from agpo_bench.training.model import LoadedModel, weights_fingerprint
from agpo_bench.training.sequences import Layout, ScoredSequence, lay_out, split, split_padded

__all__ = ["Policy", "ScoredSequence", "TokenLogprobs"]


class TokenLogprobs(NamedTuple):
    """What the policy says about B responses; 0 where ``mask_BT`` is 0."""

    logprob_BT: Tensor
    """log softmax(logits / temperature)[token]: full vocabulary, each sequence at its own temperature (nats)."""
    entropy_BT: Tensor | None
    """Entropy (nats) of softmax(logits), temperature 1, at the position each token was drawn from."""
    value_BT: Tensor | None
    """Value of the state each token was drawn in (the prompt and the tokens before it), from the value head."""
    mask_BT: Tensor
    """1.0 on response tokens, by length and never by token value; the terminator is one of them."""


class Policy:
    """A trainable (or frozen) causal LM as the loss sees it.

    Weights are trained in float32 and multiplied in the type the model was loaded in, so a model loaded in bfloat16
    keeps float32 master weights. The model is in evaluation mode throughout and its dropout is 0, so the ratio of the
    first pass over fresh rollouts is 1 up to rounding. The Llama family goes through our own forward pass, in which a
    prompt is computed once for all its responses in the batch and only the states that predict a response token meet
    the output head; any other architecture goes through the library's.

    An engine may hold the float32 weights in place of the model (``holds_master`` false: the model stays in the type it
    was loaded in), and may gather a weight only while the module that owns it runs (``through_modules``).

    ``value_head`` adds a critic: ``shared`` puts a linear head on the policy's own hidden states, ``separate`` gives it
    a trunk of its own, copied from the model as it is now. The head starts at 0 and so does every value.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        value_head: Literal["none", "shared", "separate"] = "none",
        is_frozen: bool = False,
        gradient_checkpointing: bool = False,
        holds_master: bool = True,
        through_modules: bool = False,
    ) -> None:
        if value_head not in {"none", "shared", "separate"}:
            raise ValueError(f"no value head {value_head!r}; use none, shared or separate")
        if is_frozen and value_head != "none":
            raise ValueError("a frozen policy takes no value head: nothing would train it")
        self.loaded = loaded
        self.device = loaded.device
        model = loaded.model
        self.is_adapted = has_adapters(model)
        self._is_bare = False
        if not self.is_adapted:
            if not is_frozen and holds_master:
                model.float()
            for parameter in model.parameters():
                parameter.requires_grad_(not is_frozen)
        options: dict[str, Any] = {"compute_dtype": loaded.compute_dtype, "checkpointing": gradient_checkpointing}
        self._forward = make_forward(model, through_modules=through_modules, **options)
        self._modules: dict[str, nn.Module] = {"model": model}
        self._parked: list[tuple[nn.Parameter, Tensor]] = []
        self._value_forward: Forward | None = None
        if value_head == "separate":
            # What adapters leave frozen is shared; only the adapters are the critic's own.
            frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
            trunk = copy.deepcopy(model.base_model, frozen)
            self._modules["value_trunk"] = trunk
            self._value_forward = make_forward(model, trunk=trunk, through_modules=through_modules, **options)
        self._value_head: nn.Linear | None = None
        if value_head != "none":
            self._value_head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=self.device)
            nn.init.zeros_(self._value_head.weight)
            nn.init.zeros_(self._value_head.bias)
            self._modules["value_head"] = self._value_head

    def logprobs(
        self,
        sequences: Sequence[ScoredSequence],
        *,
        with_entropy: bool = False,
        with_values: bool = False,
        with_grad: bool = True,
    ) -> TokenLogprobs:
        """Score one micro-batch in one forward pass; the graph is kept when ``with_grad``.

        The entropy carries a gradient as well.
        """
        with torch.set_grad_enabled(with_grad), self._weights_in_use():
            layout = lay_out(sequences, self.device)
            states = self._forward.states(layout, sequences)
            temperature_M = _per_token([sequence.temperature for sequence in sequences], layout)
            logprob_M, entropy_M = self._forward.score(
                states, layout.target_M, temperature_M, with_entropy=with_entropy
            )
            value_M = self._token_values(layout, sequences, states.hidden_Md) if with_values else None
            return TokenLogprobs(
                logprob_BT=_spread(logprob_M, layout),
                entropy_BT=None if entropy_M is None else _spread(entropy_M, layout),
                value_BT=None if value_M is None else _spread(value_M, layout),
                mask_BT=_spread(torch.ones_like(logprob_M, requires_grad=False), layout),
            )

    def score(
        self,
        sequences: Sequence[ScoredSequence],
        *,
        max_tokens: int,
        with_entropy: bool = False,
        with_values: bool = False,
    ) -> TokenLogprobs:
        """Any number of sequences without gradients: split, score, put back in order (old and reference passes)."""
        width = max(len(sequence.response_ids) for sequence in sequences)
        names = ["logprob_BT", "mask_BT", *["entropy_BT"] * with_entropy, *["value_BT"] * with_values]
        whole = {name: torch.zeros(len(sequences), width, device=self.device) for name in names}
        with torch.no_grad(), self._weights_in_use(), self._forward.same_weights():
            for indices in self.micro_batches(sequences, max_tokens=max_tokens):
                part = self.logprobs(
                    [sequences[i] for i in indices],
                    with_entropy=with_entropy,
                    with_values=with_values,
                    with_grad=False,
                )
                rows = torch.tensor(indices, device=self.device)
                for name in names:
                    values = getattr(part, name)
                    whole[name][rows, : values.shape[1]] = values
        return TokenLogprobs(
            logprob_BT=whole["logprob_BT"],
            entropy_BT=whole.get("entropy_BT"),
            value_BT=whole.get("value_BT"),
            mask_BT=whole["mask_BT"],
        )

    def values(self, sequences: Sequence[ScoredSequence], *, with_grad: bool = True) -> Tensor:
        """``value_BT`` of one micro-batch, without the output head's work."""
        with torch.set_grad_enabled(with_grad):
            layout = lay_out(sequences, self.device)
            return _spread(self._token_values(layout, sequences, None), layout)

    def _token_values(self, layout: Layout, sequences: Sequence[ScoredSequence], hidden_Md: Tensor | None) -> Tensor:
        if self._value_head is None:
            raise ValueError("this policy has no value head; build it with value_head='shared' or 'separate'")
        if self._value_forward is not None:
            hidden_Md = self._value_forward.hidden(layout, sequences)
        elif hidden_Md is None:
            hidden_Md = self._forward.hidden(layout, sequences)
        value_M: Tensor = self._value_head(hidden_Md.to(self._value_head.weight.dtype))[:, 0]
        return value_M.float()

    def micro_batches(self, sequences: Sequence[ScoredSequence], *, max_tokens: int) -> list[list[int]]:
        """Indices of the sequences in micro-batches, counting tokens as this policy's forward pass takes them."""
        cut = split_padded if self._forward.is_padded else split
        return cut(sequences, max_tokens=max_tokens)

    @staticmethod
    def split(sequences: Sequence[ScoredSequence], *, max_tokens: int) -> list[list[int]]:
        """Micro-batches of any policy, a prompt counted once: see ``sequences.split``."""
        return split(sequences, max_tokens=max_tokens)

    def frozen_copy(self) -> Policy:
        """A reference policy: the weights as they are now, in the compute type, without gradients or value head.

        Of a model with adapters it is the model without them, in the same memory.
        """
        if self.is_adapted:
            bare = copy.copy(self)
            bare._is_bare = True
            bare._value_head = bare._value_forward = None
            bare._modules, bare._parked = {}, []
            return bare
        model = copy.deepcopy(self.loaded.model).to(self.loaded.compute_dtype)
        return Policy(replace(self.loaded, model=model, fingerprint=weights_fingerprint(model)), is_frozen=True)

    def park(self) -> None:
        """Let a frozen policy's weights wait in the memory of the host; ``at_hand`` brings them to the device."""
        for parameter in self.parameters():
            host = parameter.data.cpu()
            self._parked.append((parameter, host.pin_memory() if self.device.type == "cuda" else host))
            parameter.data = self._parked[-1][1]

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """A context in which the weights of a parked policy are on its device; nothing for any other."""
        for parameter, host in self._parked:
            parameter.data = host.to(self.device, non_blocking=True)
        try:
            yield
        finally:
            for parameter, host in self._parked:
                parameter.data = host

    def _weights_in_use(self) -> AbstractContextManager[None]:
        return without_adapters(self.loaded.model) if self._is_bare else nullcontext()

    def fingerprint(self) -> str:
        """sha256 of the model's weights as they are now."""
        return weights_fingerprint(self.loaded.model)

    def modules(self) -> Mapping[str, nn.Module]:
        """The modules behind the parameters, by the first part of their names."""
        return self._modules

    def checksum(self) -> list[float]:
        """Float64 sum of each parameter: cheap, and different as soon as the weights are."""
        return torch.stack([parameter.detach().sum(dtype=torch.float64) for parameter in self.parameters()]).tolist()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every distinct trained parameter, the critic's included."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``parameters``, with stable names: ``model.…``, ``value_trunk.…``, ``value_head.…``; tied ones once."""
        for prefix, module in self._modules.items():
            for name, parameter in module.named_parameters():
                if not self.is_adapted or prefix == "value_head" or is_adapter_weight(name):
                    yield f"{prefix}.{name}", parameter

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The value head's and, if separate, its trunk's."""
        return (parameter for name, parameter in self.named_parameters() if not name.startswith("model."))

    def state_dict(self) -> dict[str, Tensor]:
        """Weights by the names of ``named_parameters``; not copied."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights in place. Raises ValueError when names or shapes are not this policy's."""
        own = dict(self.named_parameters())
        if set(own) != set(state):
            odd = sorted(set(own) ^ set(state))
            raise ValueError(f"weights of another policy: {len(odd)} names differ, first {odd[0]!r}")
        with torch.no_grad():
            for name, parameter in own.items():
                if parameter.shape != state[name].shape:
                    raise ValueError(
                        f"weights of another policy: {name!r} is {tuple(state[name].shape)}, "
                        f"not {tuple(parameter.shape)}"
                    )
                parameter.copy_(state[name])

    def save_pretrained(self, directory: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write model and tokenizer as a Hugging Face directory, weights in float32; the critic is left out and
        adapters are merged.

        ``weights``, by the names of ``named_parameters``, stand in for those of a model that does not hold float32.
        """
        self.loaded.tokenizer.save_pretrained(directory)
        if self.is_adapted:
            merged = merged_weights(self.loaded.model, _of_model(weights))
            # In the host's memory, matrix by matrix: a GPU has no room for all of them in float32.
            weights = {f"model.{name}": weight.to("cpu", torch.float32) for name, weight in merged}
        if weights is None:
            self.loaded.model.save_pretrained(directory)
            return
        self.loaded.model.save_pretrained(directory, state_dict=_of_model(weights))
        config = Path(directory) / "config.json"
        told = json.loads(config.read_text(encoding="utf-8")) | {"dtype": "float32"}
        write_whole(config, json.dumps(told, indent=2) + "\n")

    def save_adapters(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write adapters and tokenizer as a directory of peft; ``weights`` as in ``save_pretrained``."""
        save_adapters(self.loaded.model, directory, base=self.loaded.source, weights=_of_model(weights))
        self.loaded.tokenizer.save_pretrained(directory)


def _of_model(weights: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
    """Those of the model itself, by its own names."""
    if weights is None:
        return None
    return {name.removeprefix("model."): tensor for name, tensor in weights.items() if name.startswith("model.")}


def _per_token(value_B: list[float], layout: Layout) -> Tensor:
    value = torch.tensor(value_B, dtype=torch.float32, device=layout.slot_M.device)
    return value[torch.div(layout.slot_M, layout.width, rounding_mode="floor")]


def _spread(value_M: Tensor, layout: Layout) -> Tensor:
    """From tokens end to end to B × T, 0 elsewhere."""
    empty = value_M.new_zeros(layout.num_sequences * layout.width)
    return empty.index_copy(0, layout.slot_M, value_M).view(layout.num_sequences, layout.width)
