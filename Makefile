# Everything runs in .venv, which these targets make and fill: `make test` and `make demo` need python3 and nothing else.
# Tests run in two processes with one thread each: with more, the threads of both would wait for the same cores. They start
# hundreds of others, which import the package sooner if its compiled files may be kept.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --quiet --numprocesses 2 --dist loadgroup

.PHONY: help install style quick test demo docs reference format clean

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cappronet needs Python 3.11 or newer; this is $$($(PYTHON) --version). Set one with PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(READY) ## make .venv with everything in it

style: $(READY) ## check style, imports and types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/lint-imports --no-logo > /dev/null || $(BIN)/lint-imports
	$(BIN)/mypy --no-error-summary

quick: style ## style, imports, types and the fast tests, in under two minutes
	$(PYTEST) -m "not slow"

test: style ## style, imports, types and all tests
	$(PYTEST)

demo: $(READY) ## compare capsule, grouped and linear heads on digits
	$(BIN)/cappronet compare

docs: $(READY) ## build the site into site/
	$(BIN)/python -m zensical build --strict --clean
	@echo "Open site/index.html"

reference: $(READY) ## write the command reference and the tables of results in docs/ anew
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.tables

format: $(READY) ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .cache site
