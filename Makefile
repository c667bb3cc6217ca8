# make demo   the main job on this machine: results/cpu/report.html
# make test   the tests
# make check  format, lint, types, imports
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := stack workloads workflows reports tests envs tools
TESTS ?= tests
PYTEST_ARGS ?= -m "not gpu and not multi_gpu and not nightly"
.DEFAULT_GOAL := help
.PHONY: help env env-test demo test check smoke bench-host accuracy clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

env:
	@envs/create.sh $(VENV) envs/cpu.txt

env-test:
	@envs/create.sh $(VENV) envs/cpu.txt envs/test.txt

demo: env  ## run the main job on the CPU testbed and write results/cpu/report.html
	@$(BIN)/np1d doctor --testbed cpu
	@$(BIN)/np1d run --testbed cpu --demo
	@echo "open results/cpu/report.html"

test: env-test  ## install what the tests need and run them
	@$(BIN)/python -m pytest $(TESTS) $(PYTEST_ARGS)

check: env-test  ## format, lint, types and import rules
	@$(BIN)/ruff format --check $(wildcard $(SOURCES))
	@$(BIN)/ruff check $(wildcard $(SOURCES))
	@$(BIN)/snakefmt --check $(wildcard Snakefile workflows/rules)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

smoke: env  ## one short session of the smallest row, end to end
	@$(BIN)/np1d run decode/baseline --testbed cpu --sessions 1

bench-host: env  ## what this machine and the load client can do at most
	@$(BIN)/np1d doctor --testbed cpu --measure
	@$(BIN)/python tools/bench_host.py

accuracy: env  ## both accuracy rows on the CPU: 200 held-out stories put to the small trained model; GSM8K: np1d run accuracy
	@$(BIN)/np1d run accuracy --workload mini_gsm --testbed cpu

clean:  ## remove caches; results and .venv stay
	@rm -rf build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +
