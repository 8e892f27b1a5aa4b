# Everything runs in .venv, which these targets make and fill: `make test` and `make demo` need python3 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help install test demo docs format clean

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cappronet needs Python 3.11 or newer; this is $$($(PYTHON) --version). Set one with PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(READY) ## make .venv with everything in it

test: $(READY) ## check style and types, run all tests
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist loadgroup

demo: $(READY) ## compare capsule, grouped and linear heads on digits
	$(BIN)/cappronet compare

docs: $(READY) ## build the site into site/
	$(BIN)/zensical build --strict --clean
	@echo "Open site/index.html"

format: $(READY) ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .cache site
