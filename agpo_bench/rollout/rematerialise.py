"""Cheap intermediate results that the backward pass computes again instead of keeping.

A block of a language model keeps, next to the inputs of its matrix products, what elementwise functions and gathers
make of them: normed states, activated gates, repeated keys and values. Computing those again costs a few operations a
number, where the products cost hundreds. (Chen et al. 2016, "Training deep nets with sublinear memory cost";
``torch.utils.checkpoint`` of a whole block computes the matrix products again as well.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

_SMALL = 16
"""What is this many times smaller than a function's largest input (means, scales) is kept."""


class Call(Protocol):
    """How a block calls a cheap function of tensors."""

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """``function(*inputs)``."""
        ...


def keep(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Call it; autograd keeps what it keeps."""
    return function(*inputs)


class Rematerialise:
    """A context; functions called through it leave neither their output nor their insides behind.

    Wherever autograd would keep one of these while the context is open, it keeps the means to make it again. Values and
    gradients are the same bits as without. Functions are deterministic, and no tensor but their ``inputs`` needs a
    gradient.
    """

    def __init__(self) -> None:
        self._outputs: dict[_Key, tuple[Tensor, _Again]] = {}
        self._running: _Again | None = None
        self._hooks: Any = None

    def __enter__(self) -> Self:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hooks.__exit__(kind, error, at)
        # Every output lived until here, so an address stood for one tensor alone.
        self._outputs.clear()

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """``function(*inputs)``."""
        again = self._running = _Again(function, inputs, [self._kept(tensor) for tensor in inputs])
        try:
            output = function(*inputs)
        finally:
            self._running = None
        self._outputs[_key(output)] = (output, again)
        return output

    def _kept(self, tensor: Tensor) -> Tensor | _Output:
        known = self._outputs.get(_key(tensor))
        return tensor.detach() if known is None else _Output(known[1])

    def _pack(self, tensor: Tensor) -> Tensor | _Output | _Inside:
        again = self._running
        if again is None:
            known = self._outputs.get(_key(tensor))
            # An operation's own output would otherwise hold the operation, and that its output.
            return tensor.detach() if known is None else _Output(known[1])
        number = again.num_inside
        again.num_inside += 1
        source = again.source_of(tensor)
        if source is not None:
            return source
        return tensor.detach() if _SMALL * tensor.numel() <= again.largest else _Inside(again, number)


class _Key(NamedTuple):
    """What tells a tensor from every other one that is alive."""

    address: int
    shape: torch.Size
    strides: tuple[int, ...]


def _key(tensor: Tensor) -> _Key:
    return _Key(tensor.data_ptr(), tensor.shape, tensor.stride())


class _Output(NamedTuple):
    """In the place of a function's output."""

    again: _Again


class _Inside(NamedTuple):
    """In the place of what a function's own operations keep."""

    again: _Again
    number: int


class _Again:
    """One call of a function, to be repeated: what it made is handed out once each, then made anew."""

    def __init__(
        self, function: Callable[..., Tensor], inputs: Sequence[Tensor], sources: Sequence[Tensor | _Output]
    ) -> None:
        self._function, self._sources = function, sources
        self._need_gradient = [tensor.requires_grad for tensor in inputs]
        self._numbers = {_key(tensor): number for number, tensor in enumerate(inputs)}
        self.largest = max(tensor.numel() for tensor in inputs)
        self.num_inside = 0
        self._output: Tensor | None = None
        self._inside: dict[int, Tensor] = {}

    def source_of(self, tensor: Tensor) -> Tensor | _Output | None:
        """What stands for an input of the function; None for another tensor."""
        number = self._numbers.get(_key(tensor))
        return None if number is None else self._sources[number]

    def output(self) -> Tensor:
        """The function's output."""
        if self._output is None:
            self._repeat()
        output, self._output = self._output, None
        assert output is not None
        return output

    def inside(self, number: int) -> Tensor:
        """What its operations kept, by the order in which they did."""
        if number not in self._inside:
            self._repeat()
        return self._inside.pop(number)

    def _repeat(self) -> None:
        inputs = [_unpack(source).detach() for source in self._sources]
        if not self.num_inside:
            with torch.no_grad():
                self._output = self._function(*inputs)
            return
        kept: list[Tensor] = []

        def note(tensor: Tensor) -> None:
            kept.append(tensor.detach())  # with its graph it would hold this list, and that would hold the graph

        for tensor, needs in zip(inputs, self._need_gradient, strict=True):
            tensor.requires_grad_(needs)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, _unpack):
            output = self._function(*inputs)
        self._output, self._inside = output.detach(), dict(enumerate(kept))


def _unpack(packed: Any) -> Tensor:
    """The tensor that something stands for."""
    if isinstance(packed, _Output):
        return packed.again.output()
    if isinstance(packed, _Inside):
        return packed.again.inside(packed.number)
    tensor: Tensor = packed
    return tensor
