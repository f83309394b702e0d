"""Sampling with torch from any Hugging Face causal LM, on CPU or one GPU.

Shapes: J rollouts of one call, n rows decoding side by side (row i belongs to rollout ``job_n[i]``), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agpo_bench.records import Group, Rollout
from agpo_bench.rollout.choice import RowSettings, choose, row_settings
from agpo_bench.rollout.engines import Engine, make_engine
from agpo_bench.rollout.sampler import SamplingRequest, check_request, weights_stamp
from agpo_bench.rollout.stopping import StopFinder, decode_response

if TYPE_CHECKING:
    from agpo_bench.training.model import LoadedModel


class TorchSampler:
    """The in-process sampling backend: shares the model object, and so its weights, with the policy.

    Every distinct prompt is read once, its keys and values shared by its rollouts; rows that end leave the batch at
    once and waiting ones take their places. Nothing of the model's generation_config is used but its end-of-sequence
    ids.

    A rollout depends on its prompt, its seed and its settings. On CPU in float32 with the lean decoder (Llama, Qwen2,
    Qwen3, Mistral without sliding windows) its tokens and log-probabilities were found to be the same bits whatever
    shares its batch: rows and widths are padded to sizes that the matrix library rounds alike. This was measured on
    one processor, not proved. On a GPU, in bfloat16, or with an architecture that goes through the library's forward,
    the shape of the batch may change the last bits of a logit, and a token then changes when its uniform number falls
    within that error of a boundary (about one token in a million).

    ``max_rows`` sequences decode side by side, fewer where their caches would exceed ``max_cache_bytes``.
    """

    is_separate = False

    def __init__(self, loaded: LoadedModel, *, max_rows: int = 512, max_cache_bytes: int = 2 << 30) -> None:
        self.weights_version = 0
        self._loaded = loaded
        self._max_rows = max_rows
        self._max_cache_bytes = max_cache_bytes
        self._engine = make_engine(loaded.model, loaded.compute_dtype)
        self.load_weights(0)

    def load_weights(self, version: int) -> None:
        """Take over the model's weights as they are now; later rollouts carry ``version``."""
        self.weights_version = version
        self._engine.refresh()
        self._stamp = weights_stamp(self._loaded.model)

    def release(self) -> None:
        """Nothing: the weights are the policy's, and a cache lives no longer than a call."""

    def close(self) -> None:
        """Nothing."""

    def sample(self, requests: Sequence[SamplingRequest], *, with_entropy: bool = False) -> list[Group]:
        """Return one group a request, in the order of the requests.

        At temperature 0 the log-probabilities are those of temperature 1. Raises ValueError for a request that cannot
        be sampled, and RuntimeError when the weights have changed since ``load_weights``: such rollouts would carry
        the wrong version.
        """
        for request in requests:
            check_request(request)
        if self._stamp != weights_stamp(self._loaded.model):
            raise RuntimeError(
                f"the model's weights changed after load_weights({self.weights_version}); call load_weights again"
            )
        jobs = [_Job(request, index) for request in requests for index in range(len(request.seeds))]
        responses = iter(self._respond(jobs, with_entropy=with_entropy))
        return [
            Group(
                prompt_id=request.prompt_id,
                prompt_ids=request.prompt_ids,
                rollouts=tuple(
                    self._rollout(_Job(request, index), next(responses), with_entropy)
                    for index in range(len(request.seeds))
                ),
            )
            for request in requests
        ]

    def _respond(self, jobs: list[_Job], *, with_entropy: bool) -> list[_Response]:
        if not jobs:
            return []
        num_slots = max(len(job.request.prompt_ids) + job.request.max_new_tokens for job in jobs)
        affordable = self._max_cache_bytes // max(1, self._engine.bytes_per_slot() * num_slots)
        decoding = _Decoding(
            self._engine,
            jobs,
            num_rows=max(1, min(len(jobs), self._max_rows, affordable)),
            loaded=self._loaded,
            with_entropy=with_entropy,
        )
        with torch.no_grad():
            decoding.run()
        return decoding.responses()

    def _rollout(self, job: _Job, response: _Response, with_entropy: bool) -> Rollout:
        request = job.request
        return Rollout(
            sample_index=job.sample_index,
            seed=request.seeds[job.sample_index],
            response_ids=tuple(response.token_ids),
            logprobs=tuple(response.logprobs),
            entropies=tuple(response.entropies) if with_entropy else None,
            text=decode_response(
                self._loaded.tokenizer,
                response.token_ids,
                terminators=self._loaded.terminators,
                stop=request.stop,
            ),
            is_finished=response.is_finished,
            temperature=request.temperature,
            weights_version=self.weights_version,
        )


class _Job(NamedTuple):
    request: SamplingRequest
    sample_index: int


class _Response(NamedTuple):
    token_ids: list[int]
    logprobs: list[float]
    entropies: list[float]
    is_finished: bool


class _Decoding:
    """One call of ``sample``: rows enter from the queue, step, and leave."""

    def __init__(
        self,
        engine: Engine,
        jobs: list[_Job],
        *,
        num_rows: int,
        loaded: LoadedModel,
        with_entropy: bool,
    ) -> None:
        self._engine, self._jobs = engine, jobs
        self._num_rows, self._with_entropy = num_rows, with_entropy
        self._tokenizer, self._terminators = loaded.tokenizer, loaded.terminators
        requests = [job.request for job in jobs]
        self._settings_J = row_settings(
            temperatures=[request.temperature for request in requests],
            top_ps=[request.top_p for request in requests],
            seeds=[request.seeds[job.sample_index] for request, job in zip(requests, jobs, strict=True)],
            device=loaded.device,
        )
        self._limit_J = np.array([request.max_new_tokens for request in requests], dtype=np.int64)
        self._is_finished_J = np.zeros(len(jobs), dtype=bool)
        self._stops: StopFinder | None = None
        self._spelt_nT = np.zeros((0, 0), dtype=np.int64)
        """The tokens of each row so far, kept only where stop strings are looked for."""
        # Longest prompts first, equal prompts side by side: alike lengths share a prefill, equal prompts a cache.
        self._queue = sorted(
            range(len(jobs)), key=lambda i: (-len(requests[i].prompt_ids), requests[i].prompt_ids), reverse=True
        )
        self._history: list[tuple[NDArray[Any], ...]] = []
        self._job_n = np.zeros(0, dtype=np.int64)
        self._position_n = np.zeros(0, dtype=np.int64)
        self._is_live_n = np.zeros(0, dtype=bool)

    def run(self) -> None:
        """Decode until every rollout has ended."""
        logits_nV = self._admit(None)
        assert logits_nV is not None, "there is a rollout to begin with"
        self._is_terminator_V = np.zeros(logits_nV.shape[1], dtype=bool)
        self._is_terminator_V[[token for token in self._terminators if token < logits_nV.shape[1]]] = True
        stop_J = [job.request.stop for job in self._jobs]
        if any(stop_J):
            self._stops = StopFinder(self._tokenizer, stop_J, vocabulary_size=logits_nV.shape[1])
            self._spelt_nT = np.zeros((self._num_rows, int(self._limit_J.max())), dtype=np.int64)
        while logits_nV is not None:
            choice = choose(logits_nV, self._settings_n, self._position_n, with_entropy=self._with_entropy)
            self._record(choice.token_B, choice.logprob_B, choice.entropy_B)
            token_n = self._leave(choice.token_B)
            logits_nV = self._engine.step(token_n) if len(self._job_n) else None
            logits_nV = self._admit(logits_nV)

    def _record(self, token_n: Tensor, logprob_n: Tensor, entropy_n: Tensor | None) -> None:
        columns = [token_n, logprob_n] if entropy_n is None else [token_n, logprob_n, entropy_n]
        host = [column.cpu().numpy() for column in columns]
        live = self._is_live_n
        jobs = self._job_n
        if not live.all():
            host, jobs = [column[live] for column in host], jobs[live]
        self._history.append((jobs, *host))
        tokens = token_n.cpu().numpy()
        is_over = self._is_terminator_V[tokens] & live
        if self._stops is not None:
            self._stop(tokens, live & ~is_over, is_over)
        self._position_n = self._position_n + 1
        self._is_finished_J[self._job_n[is_over]] = True
        self._is_live_n = live & ~is_over & (self._position_n < self._limit_J[self._job_n])

    def _stop(self, token_n: NDArray[np.int64], is_open_n: NDArray[np.bool_], is_over_n: NDArray[np.bool_]) -> None:
        """Mark in ``is_over_n`` the open rows whose newest token completes a stop string."""
        assert self._stops is not None
        (rows,) = np.nonzero(is_open_n)
        self._spelt_nT[rows, self._position_n[rows]] = token_n[rows]
        previous_n = self._spelt_nT[rows, np.maximum(self._position_n[rows] - 1, 0)]
        for row in rows[self._stops.may_be_complete(self._job_n[rows], token_n[rows], previous_n)]:
            spelt = self._spelt_nT[row, : self._position_n[row] + 1].tolist()
            is_over_n[row] = self._stops.is_complete(int(self._job_n[row]), spelt)

    def _leave(self, token_n: Tensor) -> Tensor:
        """Close the gaps of ended rows with the last live ones; returns the tokens of the rows that stay."""
        num_rows, num_live = len(self._job_n), int(self._is_live_n.sum())
        if num_live == num_rows or (num_live and num_rows - num_live < self._engine.min_dead_fraction * num_rows):
            return token_n
        order_n = np.arange(num_live)
        order_n[~self._is_live_n[:num_live]] = num_live + np.nonzero(self._is_live_n[num_live:])[0]
        if num_live:
            self._engine.compact(order_n)
        self._job_n, self._position_n = self._job_n[order_n], self._position_n[order_n]
        self._is_live_n = np.ones(num_live, dtype=bool)
        if self._stops is not None:
            self._spelt_nT[:num_live] = self._spelt_nT[order_n]
        self._select_settings()
        return token_n[torch.from_numpy(order_n).to(token_n.device)]

    def _admit(self, logits_nV: Tensor | None) -> Tensor | None:
        """Let waiting rollouts in once a quarter of the rows is free (all of them, for some engines)."""
        num_free = self._num_rows - len(self._job_n)
        is_open = num_free >= max(1, self._num_rows // 4) if self._engine.admits_while_running else logits_nV is None
        if not self._queue or not is_open:
            return logits_nV
        if logits_nV is None:
            self._engine.begin(
                num_rows=self._num_rows,
                prompt_slots=max(len(job.request.prompt_ids) for job in self._jobs),
                response_slots=int(self._limit_J.max()),
            )
        new = [self._queue.pop() for _ in range(min(num_free, len(self._queue)))]
        runs = [(prompt, len(list(run))) for prompt, run in groupby(self._jobs[i].request.prompt_ids for i in new)]
        added_nV = self._engine.admit([prompt for prompt, _ in runs], [count for _, count in runs])
        self._job_n = np.concatenate((self._job_n, np.array(new, dtype=np.int64)))
        self._position_n = np.concatenate((self._position_n, np.zeros(len(new), dtype=np.int64)))
        self._is_live_n = np.concatenate((self._is_live_n, np.ones(len(new), dtype=bool)))
        self._select_settings()
        return added_nV if logits_nV is None else torch.cat((logits_nV, added_nV))

    def _select_settings(self) -> None:
        every, index = self._settings_J, torch.from_numpy(self._job_n).to(self._settings_J.temperature_B1.device)
        self._settings_n = RowSettings(
            temperature_B1=every.temperature_B1[index],
            greedy_B=None if every.greedy_B is None else every.greedy_B[index],
            top_p_B=None if every.top_p_B is None else every.top_p_B[index],
            seed_B=every.seed_B[self._job_n],
        )

    def responses(self) -> list[_Response]:
        """What every rollout said, in the order of the jobs."""
        columns = [np.concatenate(column) for column in zip(*self._history, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        ends = np.cumsum(np.bincount(columns[0], minlength=len(self._jobs)))
        lists = [column[order].tolist() for column in columns[1:]]
        starts = np.concatenate(([0], ends[:-1]))
        return [
            _Response(
                token_ids=lists[0][start:end],
                logprobs=lists[1][start:end],
                entropies=lists[2][start:end] if self._with_entropy else [],
                is_finished=bool(is_finished),
            )
            for start, end, is_finished in zip(starts, ends, self._is_finished_J, strict=True)
        ]
