"""How many numbers low-rank adapters hold, by rank and targets: A is rank × inputs of its matrix, B outputs × rank.

The names are those of the library's models, and a target matches the last parts of a name, as in peft.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from agpo_bench.planning.machine import Machine
from agpo_bench.planning.shapes import ModelShape

ALL_LINEAR = ("all-linear",)


class Matrix(NamedTuple):
    """A linear layer inside a decoder layer."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What a run trains in the place of every weight."""

    rank: int
    layers_by_name: dict[str, int]
    """Layers of the model in which each matrix has an adapter, by the matrix's name; only those with one."""
    num_parameters: int
    """Elements of all A and B of one model: rank · (inputs + outputs) a matrix."""


def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Those of one decoder layer."""
    d, inner = shape.hidden_size, shape.inner_size
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return (
        Matrix("self_attn.q_proj", d, query),
        Matrix("self_attn.k_proj", d, key),
        Matrix("self_attn.v_proj", d, key),
        Matrix("self_attn.o_proj", query, d),
        Matrix("mlp.gate_proj", d, inner),
        Matrix("mlp.up_proj", d, inner),
        Matrix("mlp.down_proj", inner, d),
    )


def adapters_of(shape: ModelShape, machine: Machine) -> Adapters | None:
    """The run's adapters; None where every weight is trained.

    Raises ValueError in one sentence for targets that name no matrix.
    """
    return _adapters(shape, machine.lora_rank, machine.lora_targets) if machine.lora_rank else None


@lru_cache(maxsize=64)
def _adapters(shape: ModelShape, rank: int, targets: tuple[str, ...]) -> Adapters:
    found = {
        matrix: sum(_is_target(f"model.layers.{layer}.{matrix.name}", targets) for layer in range(shape.num_layers))
        for matrix in matrices(shape)
    }
    if not any(found.values()):
        names = ", ".join(matrix.name.rpartition(".")[2] for matrix in found)
        raise ValueError(
            f"lora_targets = {','.join(targets)}: {shape.name} has no such linear layer; it has {names}, and "
            f"{ALL_LINEAR[0]} means all of them"
        )
    return Adapters(
        rank=rank,
        layers_by_name={matrix.name: count for matrix, count in found.items() if count},
        num_parameters=sum(rank * (matrix.inputs + matrix.outputs) * count for matrix, count in found.items()),
    )


def _is_target(name: str, targets: tuple[str, ...]) -> bool:
    return targets == ALL_LINEAR or any(name == target or name.endswith(f".{target}") for target in targets)


FUSED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("self_attn.o_proj",),
    ("mlp.down_proj",),
)
"""What our own forward pass multiplies with at once: one adapted part makes all of it W + s B A."""


def products(shape: ModelShape, adapters: Adapters, *, merged_only: bool = False) -> int:
    """Elements of the matrices W + s B A of our own forward pass; ``merged_only``: of those not laid side by side."""
    sizes = {matrix.name: matrix.inputs * matrix.outputs for matrix in matrices(shape)}
    return sum(
        max(adapters.layers_by_name.get(name, 0) for name in names) * sum(sizes[name] for name in names)
        for names in FUSED
        if len(names) == 1 or not merged_only
    )
