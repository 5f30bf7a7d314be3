# make demo | check | test | bench: each makes its own virtual environment first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q

.PHONY: demo check test unit integration e2e bench fuzz clean format

$(VENV)/.ready-run: pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) install -e '.[nvidia]'
	touch $@

$(VENV)/.ready-dev: pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) install -e '.[nvidia,dev]'
	touch $@ $(VENV)/.ready-run

demo: $(VENV)/.ready-run
	$(PY) -m chopperd demo

format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check --fix -q .
	$(VENV)/bin/ruff format -q .

check: $(VENV)/.ready-dev
	$(VENV)/bin/ruff format --check -q .
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/mypy chopperd tests bench
	PATH=$(VENV)/bin:$$PATH $(VENV)/bin/lint-imports
	$(PY) -m pytest tests/unit -q

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info bench/work
