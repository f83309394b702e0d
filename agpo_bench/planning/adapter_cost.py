"""Operations of passes over tokens where only low-rank adapters are trained.

A frozen matrix wants no gradient of its own, so a backward pass takes once its forward pass and not twice, unless our
own forward pass multiplies with W + s B A: that product's gradient is what those of B and A are made from.
"""

from __future__ import annotations

from agpo_bench.planning.adapters import Adapters, products
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.shapes import ModelShape


def beside_per_token(shape: ModelShape, machine: Machine, adapters: Adapters) -> float:
    """Operations that the adapters add to a token's forward pass: two a number of A and B, none where they are merged.

    The products B A of our own forward pass are made once a micro-batch, whatever its tokens, and not counted.
    """
    return 0.0 if _is_merged(shape, machine) else 2.0 * adapters.num_parameters


def spared_per_token(shape: ModelShape, machine: Machine, adapters: Adapters) -> float:
    """Operations that frozen matrices of the layers spare a token's backward pass: two a weight without a gradient."""
    wanted = products(shape, adapters) if _is_merged(shape, machine) else 0
    return 2.0 * (shape.matrices_per_token - wanted)


def _is_merged(shape: ModelShape, machine: Machine) -> bool:
    return shape.is_lean and not machine.through_modules
