"""One task through lm-eval's own evaluator, with our sampler behind its model interface."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from agpo_bench import paths
from agpo_bench.data.benchmarks import load_task
from agpo_bench.evaluation.draws import Draw, DrawFile, draw_key
from agpo_bench.evaluation.results import AskedItem, Sample
from agpo_bench.rollout.encoding import PromptEncoder
from agpo_bench.rollout.sampler import Sampler, SamplingRequest, sampling_seed

Progress = Callable[[str, int, int], None]
"""Called with the task's name, the draws that exist, and the draws wanted."""

_TOKENS_PER_FLUSH = 131_072
"""At most so many new tokens are lost when an evaluation is killed."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How responses are drawn: draw 0 greedily, draws 1…k from the nucleus."""

    max_new_tokens: int
    num_draws: int = 0
    """Sampled draws beside the greedy one."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Which items are asked, and how."""

    source: str
    """What ``open_source`` takes."""
    split: str = "test"
    limit: int | None = None
    num_few_shot: int = 0
    few_shot_source: str | None = None
    grading: str = "official"


class SamplerLM(LM):  # type: ignore[misc]
    """Our sampler as an lm-eval model. lm-eval sends each item once a repeat: the n-th time is draw n."""

    def __init__(
        self,
        sampler: Sampler,
        encoder: PromptEncoder,
        *,
        model_key: str,
        decoding: Decoding,
        draws: DrawFile,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self._sampler = sampler
        self._encoder = encoder
        self._model_key = model_key
        self._decoding = decoding
        self._draws = draws
        self._progress = progress
        self.num_new_tokens = 0

    def key_of(self, *, prompt_id: str, prompt: str, stop: tuple[str, ...], draw: int) -> str:
        """Key of one draw: a greedy one does not depend on temperature, nucleus or seed."""
        d = self._decoding
        sampled = (d.temperature, d.top_p, self._seed(prompt_id, draw)) if draw else ()
        return draw_key(self._model_key, prompt, stop, d.max_new_tokens, draw, *sampled)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Texts in the order of the requests; those drawn before are read back, the rest drawn and kept."""
        wanted = self._number(requests)
        missing = {key: request for key, request in wanted if self._draws.get(key) is None}
        total, task = len(wanted), str(requests[0].doc["task"]) if requests else ""
        done = total - len(missing)
        self._report(task, done, total)
        per_flush = max(1, _TOKENS_PER_FLUSH // self._decoding.max_new_tokens)
        keys = list(missing)
        for start in range(0, len(keys), per_flush):
            chunk = keys[start : start + per_flush]
            groups = self._sampler.sample([missing[key] for key in chunk])
            drawn = []
            for key, group in zip(chunk, groups, strict=True):
                (rollout,) = group.rollouts
                self.num_new_tokens += rollout.num_tokens
                drawn.append(
                    Draw(
                        draw_key=key,
                        text=rollout.text,
                        is_truncated=not rollout.is_finished,
                        num_tokens=rollout.num_tokens,
                    )
                )
            self._draws.add(drawn)
            done += len(drawn)
            self._report(task, done, total)
        return [self.draw(key).text for key, _ in wanted]

    def draw(self, key: str) -> Draw:
        """A draw that ``generate_until`` has made."""
        draw = self._draws.get(key)
        assert draw is not None
        return draw

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Not asked for by any of our tasks: every benchmark is answered by generated text."""
        raise ValueError("agpo-bench evaluates generated answers; use lm-eval's own models for log-likelihood tasks")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Not asked for by any of our tasks."""
        raise ValueError("agpo-bench evaluates generated answers; use lm-eval's own models for perplexity tasks")

    def _number(self, requests: list[Instance]) -> list[tuple[str, SamplingRequest]]:
        seen: Counter[str] = Counter()
        wanted = []
        for request in requests:
            prompt, arguments = request.args
            prompt_id = str(request.doc["prompt_id"])
            draw = seen[prompt_id]
            seen[prompt_id] += 1
            stop = tuple(arguments["until"])
            key = self.key_of(prompt_id=prompt_id, prompt=prompt, stop=stop, draw=draw)
            wanted.append((key, self._request(prompt_id, prompt, stop, draw)))
        return wanted

    def _request(self, prompt_id: str, prompt: str, stop: tuple[str, ...], draw: int) -> SamplingRequest:
        return SamplingRequest(
            prompt_id=prompt_id,
            prompt_ids=self._encoder.encode(prompt),
            seeds=(self._seed(prompt_id, draw),),
            temperature=self._decoding.temperature if draw else 0.0,
            top_p=self._decoding.top_p if draw else 1.0,
            max_new_tokens=self._decoding.max_new_tokens,
            stop=stop,
        )

    def _seed(self, prompt_id: str, draw: int) -> int:
        return sampling_seed(self._decoding.seed, step=0, prompt_id=prompt_id, sample_index=draw, phase="eval")

    def _report(self, task: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(task, done, total)


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What lm-eval returned for one task."""

    origin: Mapping[str, Any]
    """Where the items come from (``task_functions.dataset``)."""
    samples: tuple[Sample, ...]
    items: tuple[AskedItem, ...]
    score: float | None
    """lm-eval's own mean of the greedy scores; None when no response could be graded."""


class PreparedTask:
    """One of our tasks as lm-eval built it: its items are read, nothing is asked yet."""

    def __init__(self, name: str, *, asking: Asking, decoding: Decoding) -> None:
        # lm-eval warns about --metadata for every custom data set, and about few-shot that we render ourselves.
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self.spec = load_task(name)
        self._asking = asking
        self._decoding = decoding
        manager = TaskManager(
            include_path=str(paths.definitions("tasks")),
            include_defaults=False,  # indexing lm-eval's own ten thousand tasks takes eight seconds
            metadata={
                "data": asking.source,
                "split": asking.split,
                "num_few_shot": asking.num_few_shot,
                "few_shot_source": asking.few_shot_source,
                "grading": asking.grading,
            },
        )
        self._loaded = manager.load([self.spec.lm_eval_name])
        self._task = self._loaded["tasks"][self.spec.lm_eval_name]
        self._task.set_config("repeats", 1 + decoding.num_draws)
        self._task.set_fewshot_seed(0)
        self.origin: Mapping[str, Any] = json.loads(self._task.dataset["eval"].info.description)

    def ask(self, lm: SamplerLM) -> Answered:
        """Draw, grade and count."""
        name = self.spec.lm_eval_name
        returned = evaluate(
            lm=lm, task_dict=self._loaded, limit=self._asking.limit, bootstrap_iters=0, log_samples=True
        )
        records = returned["samples"][name]
        return Answered(
            origin=self.origin,
            samples=tuple(sample for record in records for sample in _samples(record, lm)),
            items=tuple(map(_item, records)),
            score=returned["results"][name].get("score,graded"),
        )


def _item(record: Mapping[str, Any]) -> AskedItem:
    doc = record["doc"]
    return AskedItem(doc_id=record["doc_id"], prompt_id=doc["prompt_id"], prompt=doc["prompt"], gold=doc["target"])


def _samples(record: Mapping[str, Any], lm: SamplerLM) -> list[Sample]:
    """One lm-eval record is one item with all its draws."""
    doc = record["doc"]
    ((prompt, arguments),) = record["arguments"]
    (graded,) = record["filtered_resps"]
    samples = []
    for number, verdict in enumerate(graded):
        key = lm.key_of(prompt_id=doc["prompt_id"], prompt=prompt, stop=tuple(arguments["until"]), draw=number)
        draw = lm.draw(key)
        samples.append(
            Sample(
                doc_id=record["doc_id"],
                prompt_id=doc["prompt_id"],
                doc_hash=record["doc_hash"],
                prompt_hash=record["prompt_hash"],
                draw=number,
                draw_key=key,
                text=draw.text,
                is_truncated=draw.is_truncated,
                num_tokens=draw.num_tokens,
                is_leaked=doc["is_leaked"],
                **verdict,
            )
        )
    return samples
