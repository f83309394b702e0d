"""What vLLM's workers do for us beside their own work. Imported by vLLM, in its workers' processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


class WeightLoading:
    """Becomes a base class of vLLM's worker (``worker_extension_cls``)."""

    def load_trained_weights(self, weights: Iterable[tuple[str, Tensor]] | str) -> None:
        """Replace the model's weights in place by pairs of checkpoint name and tensor, or by those of a folder.

        Goes through vLLM's reload, not through ``model.load_weights``: where vLLM computes with a packed copy of a
        weight (always on a CPU, some kernels on a GPU) the latter would leave the copy as it was.
        """
        worker: Any = self
        if isinstance(weights, str):
            worker.reload_weights(weights_path=weights)
        else:
            worker.reload_weights(weights_iterator=weights)
        pack_tied_weights(worker.get_model())


def pack_tied_weights(model: nn.Module) -> None:
    """Pack again what modules with one common weight made of it.

    The reload packs a weight for the module it is loaded into, the embedding; the packed copy of an output head tied to
    it stays that of the old weights. On a GPU both read the weight itself.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    owners: dict[int, list[Any]] = defaultdict(list)
    for module in model.modules():
        if isinstance(weight := module._parameters.get("weight"), Tensor) and hasattr(module, "quant_method"):
            owners[id(weight)].append(module)
    for modules in owners.values():
        for module in modules if len(modules) > 1 else ():
            module.quant_method.process_weights_after_loading(module)
