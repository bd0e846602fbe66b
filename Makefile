# Every target installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

FLOWER := $(VENV)/.flower_installed

.PHONY: install demo test test-flower test-slow golden lint format audit clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,dp]'
	$(BIN)/python -c 'import triton' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check 'triton==3.6.0' \
		|| echo "Triton cannot be installed here: the tests of the GPU's kernels will skip"
	touch $@

$(FLOWER): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,dp,flower]'
	touch $@

demo: $(STAMP)
	$(BIN)/fedperl demo

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile

# A real federation on this machine, and Flower's simulation: five minutes.
test-flower: $(FLOWER)
	$(BIN)/python -m pytest tests/flower -m 'not slow'

test-slow: $(FLOWER)
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m 'hypothesis and not flower' --hypothesis-profile thorough

# Runs the same cases here and at the commit BASE, and prints what differs (golden/changes.md says what may).
golden: $(STAMP)
	$(BIN)/python -m golden $(or $(BASE),HEAD) $(if $(ONLY),--only '$(ONLY)') $(if $(CLOSE),--close $(CLOSE))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Known weaknesses of what is installed, by a public database: needs the internet.
audit: $(STAMP)
	test -x .audit/bin/pip-audit || ($(PYTHON) -m venv .audit && .audit/bin/python -m pip install --quiet pip-audit)
	$(BIN)/python -m pip freeze --exclude-editable > .audit/requirements.txt
	.audit/bin/pip-audit --no-deps --disable-pip --requirement .audit/requirements.txt

clean:
	rm -rf .audit $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
