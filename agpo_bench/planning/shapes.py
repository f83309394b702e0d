"""The shape of a decoder-only language model, from the fields of its ``config.json``, and what follows from it.

d hidden size, I inner size of the MLP, H query heads, K key-value heads, D head size, L layers, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agpo_bench.planning.known_shapes import KNOWN_SHAPES

_QK_NORM = frozenset({"qwen3", "gemma3_text"})
_FOUR_NORMS = frozenset({"gemma2", "gemma3_text"})
_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"})
_TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3_text"})
"""The library's default where a config.json leaves ``tie_word_embeddings`` out."""
_LEAN_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_LEAN_MAX_PARAMETERS = 1_000_000_000
"""``agpo_bench.rollout.lean_model.MAX_PARAMETERS``; a test holds the two together."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of one model."""

    name: str
    source: str
    """Where the sizes were read."""
    family: str
    """``model_type`` of the config."""
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    is_tied: bool
    """Whether the output head is the input embedding."""
    num_qkv_biases: int = 0
    """Elements of the q, k and v biases of one layer."""
    num_other_biases: int = 0
    """Elements of the other biases of one layer: attention output and MLP."""
    sliding_window: int | None = None
    """Tokens that the layers with a window keep."""
    num_windowed_layers: int = 0
    softcaps_logits: bool = False
    """Whether the head is more than one linear map, so that the logits of a whole micro-batch exist at once."""

    @property
    def attention_matrices(self) -> int:
        """Weights of q, k, v and the output projection of one layer: 2·d·H·D + 2·d·K·D."""
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def mlp_matrices(self) -> int:
        """Weights of gate, up and down of one layer: 3·d·I."""
        return 3 * self.hidden_size * self.inner_size

    @property
    def norms(self) -> int:
        """Norm weights of one layer."""
        pairs = 4 if self.family in _FOUR_NORMS else 2
        return pairs * self.hidden_size + (2 * self.head_dim if self.family in _QK_NORM else 0)

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        return self.attention_matrices + self.mlp_matrices + self.norms + self.num_qkv_biases + self.num_other_biases

    @property
    def embedding(self) -> int:
        """V·d: the input embedding, or the output head."""
        return self.vocabulary_size * self.hidden_size

    @property
    def trunk(self) -> int:
        """Parameters of the model without an output head of its own."""
        return self.embedding + self.num_layers * self.layer + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Distinct parameters; a tied head counts once."""
        return self.trunk + (0 if self.is_tied else self.embedding)

    @property
    def matrices_per_token(self) -> int:
        """Weights that one token is multiplied with in a forward pass of the layers (no head, no embedding)."""
        return self.num_layers * (self.attention_matrices + self.mlp_matrices)

    @property
    def fused(self) -> int:
        """Weights that the lean forward copies into fused matrices in float32: q, k, v (with biases), gate and up."""
        qkv = self.hidden_size * self.head_dim * (self.num_heads + 2 * self.num_kv_heads) + self.num_qkv_biases
        return self.num_layers * (qkv + 2 * self.hidden_size * self.inner_size)

    @property
    def is_lean(self) -> bool:
        """Whether training and sampling take our own forward pass; else the library's, which pads."""
        return (
            self.family in _LEAN_FAMILIES
            and self.num_windowed_layers == 0
            and not self.softcaps_logits
            and self.num_parameters <= _LEAN_MAX_PARAMETERS
        )

    def kv_elements(self, num_tokens: int) -> int:
        """Keys and values of one sequence of ``num_tokens``; a windowed layer keeps at most its window."""
        windowed = min(num_tokens, self.sliding_window or num_tokens)
        full = self.num_layers - self.num_windowed_layers
        return 2 * self.num_kv_heads * self.head_dim * (full * num_tokens + self.num_windowed_layers * windowed)


def find_shape(model: str, *, revision: str | None = None) -> ModelShape:
    """The shape of ``embedded``, ``smollm2``, a local directory, or a hub id.

    The ids of the presets are built in and need no network; any other id's config.json (a few kilobytes, no weights)
    is fetched from the hub. Raises ValueError in one sentence when it cannot be had or is of an unknown architecture.
    """
    if model == "embedded":
        from agpo_bench.data.embedded import embedded_model_directory

        return shape_from_config(_read_config(embedded_model_directory()), name=model, source="the package")
    if model in KNOWN_SHAPES and revision is None:
        return shape_from_config(KNOWN_SHAPES[model], name=model, source="its public config.json, built in")
    directory = Path(model).expanduser()
    if directory.is_dir():
        return shape_from_config(_read_config(directory), name=model, source=str(directory / "config.json"))
    if model.startswith(("/", ".", "~")) or model.count("/") != 1:
        raise ValueError(
            f"no model directory {model!r}; give a folder with config.json, a hub id like owner/name, or one of "
            f"{', '.join(KNOWN_SHAPES)}"
        )
    return shape_from_config(_hub_config(model, revision), name=model, source=f"the hub's {model}/config.json")


def shape_from_config(config: Mapping[str, Any], *, name: str, source: str) -> ModelShape:
    """From the fields of a config.json; those of ``text_config`` where the model has several parts."""
    fields: Mapping[str, Any] = config.get("text_config") or config
    family = str(fields.get("model_type", ""))
    if family not in _FAMILIES:
        raise ValueError(
            f"{name}: the sizes of architecture {family or 'unknown'!r} are not known to plan; it knows "
            f"{', '.join(sorted(_FAMILIES))}"
        )
    try:
        hidden, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
        layers, inner = int(fields["num_hidden_layers"]), int(fields["intermediate_size"])
        vocabulary = int(fields["vocab_size"])
    except KeyError as error:
        raise ValueError(f"{name}: its config ({source}) has no field {error.args[0]!r}") from None
    head_dim = int(fields.get("head_dim") or (256 if family.startswith("gemma") else hidden // heads))
    kv_heads = int(fields.get("num_key_value_heads") or heads)
    has_attention_bias = bool(fields.get("attention_bias", False))
    has_qkv_bias = family == "qwen2" or has_attention_bias
    window, num_windowed = _windows(fields, family, layers)
    return ModelShape(
        name=name,
        source=source,
        family=family,
        hidden_size=hidden,
        inner_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=vocabulary,
        is_tied=bool(fields.get("tie_word_embeddings", family in _TIED_BY_DEFAULT)),
        num_qkv_biases=(heads + 2 * kv_heads) * head_dim if has_qkv_bias else 0,
        num_other_biases=(hidden if has_attention_bias else 0)
        + (2 * inner + hidden if fields.get("mlp_bias", False) else 0),
        sliding_window=window,
        num_windowed_layers=num_windowed,
        softcaps_logits=bool(fields.get("final_logit_softcapping")) or (family == "gemma2" and _keeps_default(fields)),
    )


def _keeps_default(fields: Mapping[str, Any]) -> bool:
    # The library caps Gemma 2's logits at 30 unless the config says null.
    return "final_logit_softcapping" not in fields


def _windows(fields: Mapping[str, Any], family: str, num_layers: int) -> tuple[int | None, int]:
    """The window and how many layers have it, as the library reads the fields."""
    window = fields.get("sliding_window", 4096 if family in ("gemma2", "gemma3_text", "mistral") else None)
    if family in ("qwen2", "qwen3") and not fields.get("use_sliding_window", False):
        window = None
    if window is None or family in ("llama", "gemma"):
        return None, 0
    if kinds := fields.get("layer_types"):
        return int(window), sum(kind == "sliding_attention" for kind in kinds)
    if family == "gemma2":  # every other layer, the first one among them
        return int(window), (num_layers + 1) // 2
    if family == "gemma3_text":
        pattern = int(fields.get("sliding_window_pattern", 6))
        return int(window), num_layers - num_layers // pattern
    if family in ("qwen2", "qwen3"):
        return int(window), max(0, num_layers - int(fields.get("max_window_layers", 28)))
    return int(window), num_layers


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"the directory {str(directory)!r} holds no config.json, so it is no model") from None
    except ValueError as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object with the model's sizes")
    return content


def _hub_config(model: str, revision: str | None) -> dict[str, Any]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = hf_hub_download(model, "config.json", revision=revision)
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"cannot read the sizes of {model!r} from the hub: {reason}; pass a local folder with its config.json, "
            f"or one of the built-in {', '.join(KNOWN_SHAPES)}"
        ) from None
    return _read_config(Path(path).parent)
