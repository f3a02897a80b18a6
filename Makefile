# Parts of .ci/run, in the environment that CONTRIBUTING.md sets up; `make check BIN=` takes the tools on the path.
BIN ?= .venv/bin/
BIG ?= build/big.sqlite

.PHONY: help check test docs bench

help:
	@echo 'make check|test|docs|bench: CONTRIBUTING.md says what each does'

check:
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)mypy
	$(BIN)lint-imports --no-logo

test:
	$(BIN)pytest -n auto

docs:
	$(BIN)python tests/support/examples.py
	$(BIN)pytest -n auto tests/test_docs.py tests/test_links.py

bench: $(BIG)
	$(BIN)python benchmarks/run.py $(BIG)

$(BIG):
	mkdir -p $(@D)
	$(BIN)python benchmarks/make_report.py tests/reports/torch.sqlite $@ --copies 124
