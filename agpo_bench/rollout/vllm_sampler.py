"""Sampling with vLLM: the same requests, and rollouts with the same meaning, from an engine with its own weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agpo_bench.records import Group, Rollout
from agpo_bench.rollout.sampler import SamplingRequest, check_request, weights_stamp
from agpo_bench.rollout.stopping import decode_response, holds_stop
from agpo_bench.rollout.vllm_engine import VllmEngine, VllmSettings

if TYPE_CHECKING:
    from agpo_bench.training.model import LoadedModel

_LOWEST, _HIGHEST = 0.01, 2.0
"""vLLM samples at 0.01 what asks for less, and refuses more than 2."""


class VllmSampler:
    """The vLLM backend. Every rollout is a request of its own with its own seed: vLLM gives equal seeds equal text.

    The prompt of a group is read once and shared (prefix caching, in blocks of tokens). Tokens, finish and text follow
    our rules: the terminator is among the tokens, the tokens that spelt a stop string are too, and the text is decoded
    and cut as the torch sampler does it. Log-probabilities are those at temperature 1 over the whole vocabulary, and
    there are no entropies: the trainer scores the rollouts itself and compares (``is_separate``).

    A rollout depends on its prompt, seed and settings up to rounding: the shape of a batch changes the last bits of a
    logit, and so now and then a token.
    """

    is_separate = True

    def __init__(self, loaded: LoadedModel, settings: VllmSettings) -> None:
        self.weights_version = 0
        self._loaded = loaded
        self._engine = VllmEngine(loaded, settings)
        self._stamp = weights_stamp(loaded.model)

    def load_weights(self, version: int) -> None:
        """Copy the model's weights as they are now into the engine; later rollouts carry ``version``."""
        self._engine.load_weights()
        self.weights_version = version
        self._stamp = weights_stamp(self._loaded.model)

    def fits(self, loaded: LoadedModel) -> bool:
        """Whether ``exchange`` can take the model: it differs from this one in its weights alone."""
        return self._engine.fits(loaded)

    def exchange(self, loaded: LoadedModel, version: int) -> None:
        """Sample from another model that ``fits`` from now on, without a new engine."""
        self._engine.exchange(loaded)
        self._loaded, self.weights_version, self._stamp = loaded, version, weights_stamp(loaded.model)

    def release(self) -> None:
        """Let the trainer have the GPU's memory until the next call of ``load_weights`` or ``sample``."""
        self._engine.sleep()

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def sample(self, requests: Sequence[SamplingRequest], *, with_entropy: bool = False) -> list[Group]:
        """Return one group a request, in the order of the requests; ``entropies`` stay None.

        Raises ValueError for a request that cannot be sampled, and RuntimeError when the weights have changed since
        ``load_weights``.
        """
        del with_entropy
        most_tokens = self._engine.max_length  # of several processes all start theirs, requests or none
        for request in requests:
            check_request(request)
            _check(request, most_tokens)
        if self._stamp != weights_stamp(self._loaded.model):
            raise RuntimeError(
                f"the model's weights changed after load_weights({self.weights_version}); call load_weights again"
            )
        jobs = [(request, seed) for request in requests for seed in request.seeds]
        if not jobs:
            return [Group(prompt_id=r.prompt_id, prompt_ids=r.prompt_ids, rollouts=()) for r in requests]
        outputs = iter(
            self._engine.generate(
                [request.prompt_ids for request, _ in jobs], [self._params(request, seed) for request, seed in jobs]
            )
        )
        return [
            Group(
                prompt_id=request.prompt_id,
                prompt_ids=request.prompt_ids,
                rollouts=tuple(
                    self._rollout(request, index, next(outputs).outputs[0]) for index in range(len(request.seeds))
                ),
            )
            for request in requests
        ]

    def _params(self, request: SamplingRequest, seed: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p if request.temperature else 1.0,
            seed=seed,
            max_tokens=request.max_new_tokens,
            stop=list(request.stop),
            # The union that we know instead of the one id that vLLM takes from the tokenizer.
            ignore_eos=True,
            stop_token_ids=sorted(token for token in self._loaded.terminators if token < self._engine.vocabulary_size),
            logprobs=0,
            detokenize=bool(request.stop),
            skip_special_tokens=True,
        )

    def _rollout(self, request: SamplingRequest, index: int, output: Any) -> Rollout:
        tokenizer, terminators = self._loaded.tokenizer, self._loaded.terminators
        assert output.finish_reason in {"stop", "length"}, f"vLLM ended a response with {output.finish_reason!r}"
        logprobs = [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
        token_ids = list(output.token_ids)
        is_finished = output.finish_reason == "stop"
        if request.stop and holds_stop(tokenizer, token_ids, terminators=terminators, stop=request.stop):
            # vLLM looks for stop strings in a text that it decodes piece by piece, behind the prompt.
            while len(token_ids) > 1 and holds_stop(
                tokenizer, token_ids[:-1], terminators=terminators, stop=request.stop
            ):
                token_ids.pop()
            is_finished = True
        return Rollout(
            sample_index=index,
            seed=request.seeds[index],
            response_ids=tuple(token_ids),
            logprobs=tuple(logprobs[: len(token_ids)]),
            entropies=None,
            text=decode_response(tokenizer, token_ids, terminators=terminators, stop=request.stop),
            is_finished=is_finished,
            temperature=request.temperature,
            weights_version=self.weights_version,
        )


def _check(request: SamplingRequest, most_tokens: int) -> None:
    where = f"prompt {request.prompt_id!r}"
    if request.temperature and not _LOWEST <= request.temperature <= _HIGHEST:
        raise ValueError(
            f"{where}: vLLM samples at temperatures of {_LOWEST} to {_HIGHEST}, not {request.temperature}; "
            "use sampler=torch"
        )
    if len(request.prompt_ids) + request.max_new_tokens > most_tokens:
        raise ValueError(
            f"{where}: {len(request.prompt_ids)} prompt tokens and up to {request.max_new_tokens} new ones are "
            f"more than the {most_tokens} that the vLLM engine holds; lower max_new_tokens"
        )
