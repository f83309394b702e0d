"""Combinations of parts that cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agpo_bench.methods.method import Method


def impossible(method: Method) -> list[str]:
    """Why this combination cannot work, one sentence each."""
    found = []
    if method.is_reconstruction and not method.caption:
        found.append("a reconstruction needs a caption that says what was assumed, for every table with its runs")
    if method.loop == "preference":
        if not method.needs.pairs:
            found.append("loop 'preference' trains on pairs; set preference to {use: dpo}")
        for slot in ("clip", "kl", "critic", "shaping", "probe"):
            if getattr(method, slot).use != "none":
                found.append(f"a preference loss has no {slot}; remove {slot} {getattr(method, slot).use!r}")
        if method.groups.use != "all":
            found.append(f"a preference loss chooses pairs, not groups; remove groups {method.groups.use!r}")
        if method.temperature.use != "fixed":
            found.append("pairs come from the initial policy; an adaptive temperature has nothing to adapt to")
        return found
    if method.needs.pairs:
        found.append(f"preference {method.preference.use!r} needs loop: preference")
    if method.ratio.use == "sequence" and method.aggregation.use != "sequence_mean":
        found.append(
            f"ratio 'sequence' with aggregation {method.aggregation.use!r} counts one term a sequence once a token; "
            "use aggregation sequence_mean"
        )
    if method.surrogate.needs_token_ratio and method.ratio.use != "token":
        found.append(f"surrogate {method.surrogate.use!r} weighs tokens; ratio {method.ratio.use!r} must be 'token'")
    if method.surrogate.requires_clip and method.clip.use == "none":
        found.append(f"surrogate {method.surrogate.use!r} needs a clip; use {{use: fixed, low: 0.2, high: 0.2}}")
    if not method.surrogate.uses_clip and method.clip.use != "none":
        found.append(f"surrogate {method.surrogate.use!r} ignores the clip; remove clip {method.clip.use!r}")
    if method.clip.use == "position" and method.ratio.use != "cumulative":
        found.append(f"clip 'position' bounds a cumulative ratio; ratio is {method.ratio.use!r}")
    if method.probe.use == "none":
        for slot in ("temperature", "clip"):
            if getattr(method, slot).needs_probe:
                found.append(f"{slot} {getattr(method, slot).use!r} reads a probe; set probe to {{use: group}}")
    elif not {method.temperature.use, method.clip.use} & {"adaptive", "replay"} and not (
        method.temperature.needs_probe or method.clip.needs_probe
    ):
        found.append("no part reads the probe, whose tokens would be spent for nothing; remove probe")
    if method.is_per_prompt and method.groups.use != "all":
        found.append(f"probe scope 'prompt' ties a group to its probe; groups {method.groups.use!r} drops groups")
    if method.reuses_probe and method.is_per_prompt:
        found.append("probe scope 'prompt' has one radius a prompt, reuse: true two groups a prompt; use one")
    if method.reuses_probe and method.needs.extra_rollouts:
        found.append(f"probe groups lack the extra rollout of advantage {method.advantage.use!r}; remove reuse: true")
    if method.advantage.needs_critic != method.critic.needs_critic:
        found.append(
            f"advantage {method.advantage.use!r} and critic {method.critic.use!r} do not fit: "
            "gae needs a value_head and nothing else reads one"
        )
    if method.shaping.use != "none" and method.advantage.needs_token_inputs:
        found.append(f"shaping {method.shaping.use!r} changes rollout advantages; {method.advantage.use!r} has tokens'")
    if method.kl.is_in_reward and method.advantage.use == "pass_k":
        found.append("advantage 'pass_k' counts right answers and cannot carry a KL penalty in the reward")
    if method.group_size is not None and method.group_size < method.needs.min_group_size:
        found.append(
            f"group size {method.group_size} gives no spread for this method; use {method.needs.min_group_size} or more"
        )
    return found
