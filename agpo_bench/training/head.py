"""From hidden states to the log-probabilities of given tokens, without ever holding the logits of a whole batch.

Shapes: M response tokens, V vocabulary, d hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Logits held at a time (64 MiB in float32)."""


def token_logprobs(
    hidden_Md: Tensor,
    weight_Vd: Tensor,
    bias_V: Tensor | None,
    target_M: Tensor,
    temperature_M: Tensor,
    *,
    with_entropy: bool,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """Natural log softmax(logits / temperature)[target] and, if asked, the entropy of softmax(logits); float32.

    The backward pass computes the logits of each chunk again instead of keeping them:
    ∂logp/∂logit_v = (1[v = target] - p_v) / temperature and ∂H/∂logit_v = -q_v (log q_v + H), q at temperature 1.
    """
    outputs = _TokenLogprobs.apply(hidden_Md, weight_Vd, bias_V, target_M, temperature_M, with_entropy, chunk_elements)  # type: ignore[no-untyped-call]
    logprob_M, entropy_M = outputs
    return logprob_M, entropy_M if with_entropy else None


def logits_logprobs(
    logits_MV: Tensor, target_M: Tensor, temperature_M: Tensor, *, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """The same from logits that a model's own head has computed."""
    logits_MV = logits_MV.float()
    logprob_M = torch.log_softmax(logits_MV / temperature_M[:, None], dim=-1).gather(1, target_M[:, None])[:, 0]
    if not with_entropy:
        return logprob_M, None
    log_q_MV = torch.log_softmax(logits_MV, dim=-1)
    return logprob_M, -(log_q_MV.exp() * log_q_MV).sum(dim=-1)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (the signature torch calls it by)
        ctx: Any,
        hidden_Md: Tensor,
        weight_Vd: Tensor,
        bias_V: Tensor | None,
        target_M: Tensor,
        temperature_M: Tensor,
        with_entropy: bool,
        chunk_elements: int,
    ) -> tuple[Tensor, Tensor]:
        size = max(1, chunk_elements // weight_Vd.shape[0])
        logprobs, entropies, kept = [], [], None
        for start in range(0, max(1, hidden_Md.shape[0]), size):
            part = slice(start, start + size)
            logits_MV = F.linear(hidden_Md[part], weight_Vd, bias_V).float()
            log_p_MV = torch.log_softmax(logits_MV / temperature_M[part, None], dim=-1)
            logprobs.append(log_p_MV.gather(1, target_M[part, None])[:, 0])
            if with_entropy:
                log_q_MV = torch.log_softmax(logits_MV, dim=-1)
                entropies.append(-(log_q_MV.exp() * log_q_MV).sum(dim=-1))
            elif hidden_Md.shape[0] <= size // 4:
                kept = log_p_MV
        ctx.save_for_backward(hidden_Md, weight_Vd, bias_V, target_M, temperature_M, kept)
        ctx.chunk_size = size
        logprob_M = torch.cat(logprobs)
        entropy_M = torch.cat(entropies) if with_entropy else torch.empty(0)
        if not with_entropy:
            ctx.mark_non_differentiable(entropy_M)
        ctx.with_entropy = with_entropy
        return logprob_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_logprob_M, grad_entropy_M = grads
        hidden_Md, weight_Vd, bias_V, target_M, temperature_M, kept = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden_Md)
        grad_weight = torch.zeros_like(weight_Vd) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V) if bias_V is not None and ctx.needs_input_grad[2] else None
        for start in range(0, hidden_Md.shape[0], ctx.chunk_size):
            part = slice(start, start + ctx.chunk_size)
            scaled_M1 = (grad_logprob_M[part] / temperature_M[part])[:, None]
            if kept is not None:
                grad_MV = kept.exp().mul_(-scaled_M1)
            else:
                logits_MV = F.linear(hidden_Md[part], weight_Vd, bias_V).float()
                grad_MV = torch.softmax(logits_MV / temperature_M[part, None], dim=-1).mul_(-scaled_M1)
            grad_MV.scatter_add_(1, target_M[part, None], scaled_M1)
            if ctx.with_entropy:
                log_q_MV = torch.log_softmax(logits_MV, dim=-1)
                q_MV = log_q_MV.exp()
                entropy_M1 = -(q_MV * log_q_MV).sum(dim=-1, keepdim=True)
                grad_MV.sub_(q_MV.mul_(log_q_MV.add_(entropy_M1)).mul_(grad_entropy_M[part, None]))
            grad_MV = grad_MV.to(weight_Vd.dtype)
            grad_hidden[part] = grad_MV @ weight_Vd
            if grad_weight is not None:
                grad_weight.addmm_(grad_MV.t(), hidden_Md[part])
            if grad_bias is not None:
                grad_bias.add_(grad_MV.sum(dim=0))
        return grad_hidden, grad_weight, grad_bias, None, None, None, None
