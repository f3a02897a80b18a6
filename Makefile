# Parts of .ci/run, in the environment that CONTRIBUTING.md sets up; `make check BIN=` takes the tools on the path.
BIN ?= .venv/bin/
COVERED ?= tests/readers tests/cli tests/test_errors.py
BIG ?= build/big.sqlite

.PHONY: help links check test docs coverage bench

help:
	@echo 'make links|check|test|docs|coverage|bench: CONTRIBUTING.md says what each does'

# the folder of links that CONTRIBUTING.md sets up, with the files that are there now
links:
	$(BIN)pip install --quiet --no-deps --config-settings editable_mode=strict -e .

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

# errors and readers, the least covered first, and the whole package
coverage:
	$(BIN)pytest -n auto --cov --cov-report= $(COVERED)
	$(BIN)coverage report --include='*/errors*,*/readers/*'
	@echo "the whole package: $$($(BIN)coverage report --format=total) %"

bench: $(BIG)
	$(BIN)python benchmarks/run.py $(BIG)

$(BIG):
	mkdir -p $(@D)
	$(BIN)python benchmarks/make_report.py tests/reports/torch.sqlite $@ --copies 124
