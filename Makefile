# `make help` lists what you can ask for.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ENGINE := requirements/torch.txt requirements/engine.txt requirements/dev.txt \
          packaging/vllm-metadata/pyproject.toml

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo lint check test bench format docs clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/complete.stamp  ## Build .venv with the engine, the tools and ullage (2 to 4 minutes)
	@:

.venv/complete.stamp: $(ENGINE) pyproject.toml tools/setup.py
	@$(PYTHON) tools/setup.py

demo: setup  ## Stock vLLM and ullage side by side in a 4 GiB container (under 15 minutes)
	@$(BIN)/ullage demo

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tools
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/sizes.py

check: lint  ## Lint, types, import contracts, sizes, unit tests (about a minute)
	@$(BIN)/pytest -q tests/unit

test: lint  ## check, and every other test that this machine can run (under 25 minutes)
	@$(BIN)/pytest tests/unit tests/conformance tests/recorded tests/engine

bench: setup  ## The long comparisons, written to benchmarks/results/ (hours)
	@failed=; for script in $(wildcard benchmarks/*.py); do \
		echo "$$script"; $(BIN)/python "$$script" || failed="$$failed $$script"; \
	done; test -z "$$failed" || { echo "goal not reached, or not finished:$$failed"; exit 1; }

format: setup  ## Put every file into ruff's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup  ## Write the generated pages of docs/reference/ anew
	@$(BIN)/python tools/reference.py

clean:  ## Remove .venv, caches and the demo's files
	@rm -rf .venv .demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	@find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
