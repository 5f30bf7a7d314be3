# make demo | check | test | bench | fuzz: each makes its own virtual environment first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
TORCH := torch==2.13.0
# What the benchmarks compare with; its pandas must be older than 3 (it fails on some files).
HTA := HolisticTraceAnalysis==0.5.0
HTA_VENV := bench/scratch/hta-venv

.PHONY: demo check coverage test integration integration-rest integration-agent \
  integration-sampling e2e bench fuzz format schema dashboards metrics-table compiler prometheus \
  systemd clean

# Stamps are older than pyproject.toml when it changes, and the installation is then brought up to
# date. `ready-dev` holds all of `ready-run`.
$(VENV)/.ready-run: pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) install -e '.[nvidia]'
	touch $@

$(VENV)/.ready-dev: pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) install -e '.[nvidia,dev]'
	touch $(VENV)/.ready-run $@

# The parts of the sampler and of the trace reader that are C, which an installation without a
# compiler goes without.
NATIVE := $(addprefix chopperd/sampling/native/,native.h plans.c ticks.c dies.c integrals.c) \
  $(addprefix chopperd/traces/native/,between.h scanner.h text.h between.c file.c json.c keys.c names.c numbers.c rows.c scan.c strings.c)
$(VENV)/.ready-native: pyproject.toml $(NATIVE) $(VENV)/.ready-dev | compiler
	$(PIP) install --force-reinstall --no-deps -e .
	$(PY) -c 'from chopperd.sampling.native.library import native_library as n; assert n()'
	$(PY) -c 'from chopperd.traces.native.library import scanner_library as n; assert n()'
	touch $@

# Older versions of AMD's binding, whose structures differ: the tests build a library for each. Its
# wheels hold no library and are small.
AMDSMI := 6.2.4 6.3.3 6.4.4
AMDSMI_READY := $(addprefix $(VENV)/amdsmi/.ready-,$(AMDSMI))
$(VENV)/amdsmi/.ready-%: | $(VENV)/.ready-dev
	$(PIP) install --upgrade --no-deps --target $(VENV)/amdsmi/$* amdsmi==$*
	touch $@

# A stamp for each version, so that another one is installed when it is asked for here.
$(VENV)/.ready-$(TORCH): | $(VENV)/.ready-dev
	$(PIP) install '$(TORCH)'
	touch $@

demo: $(VENV)/.ready-run
	$(PY) -m chopperd demo

format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check --fix -q .
	$(VENV)/bin/ruff format -q .

schema: $(VENV)/.ready-dev
	$(PY) -m chopperd.report.schema > chopperd/report/report.schema.json

dashboards: $(VENV)/.ready-dev
	$(PY) -m dashboards

# The README's table of metrics and the shape of a scrape that the tests expect.
metrics-table: $(VENV)/.ready-dev
	$(PY) -m chopperd.export.table
	$(PY) -m tests.scrape_shape

check: $(VENV)/.ready-dev
	$(VENV)/bin/ruff format --check -q .
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/mypy chopperd dashboards tests bench
	PATH=$(VENV)/bin:$$PATH $(VENV)/bin/lint-imports
	$(PY) -m pytest tests/unit -q

# The parts that every figure rests on are covered to the last branch.
COVERED := model correlate export live.excess live.newest live.residency live.traced api.downsample

coverage: $(VENV)/.ready-dev
	$(PY) -m pytest $(addprefix tests/unit/,model correlate export live api report traces) -q \
	  $(addprefix --cov=chopperd.,$(COVERED)) \
	  --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

# The last four wait as well as work, so that two run side by side where there are two cores: the
# integration tests in parts, so that both cores are done at about the same time. Each shows its
# output whole when it is done; all come to their end whatever the others do, and where one fails so
# does this.
test: check coverage $(VENV)/.ready-native prometheus systemd $(VENV)/.ready-$(TORCH) $(AMDSMI_READY)
	$(MAKE) --no-print-directory --keep-going --output-sync=target \
	  -j$(if $(filter 1,$(shell nproc)),1,2) \
	  e2e integration-rest integration-sampling integration-agent

# The parts; `integration-rest` is whatever is in none of the others.
AGENT_TESTS := $(addprefix tests/integration/,agent api client live)
SAMPLING_TESTS := $(addprefix tests/integration/,devices sampling store)
integration: WHAT := tests/integration
integration-agent: WHAT := $(AGENT_TESTS)
integration-sampling: WHAT := $(SAMPLING_TESTS)
integration-rest: WHAT := tests/integration $(addprefix --ignore=,$(AGENT_TESTS) $(SAMPLING_TESTS))
e2e: WHAT := tests/e2e

# Their caches are apart: each would write the others' anew.
integration integration-agent integration-sampling integration-rest e2e: $(VENV)/.ready-native \
  prometheus systemd $(VENV)/.ready-$(TORCH) $(AMDSMI_READY)
	$(PY) -m pytest $(WHAT) -q -o cache_dir=.pytest_cache/$@

# The peer goes into an environment of its own; without it the benchmarks skip the comparison.
$(HTA_VENV)/.ready-$(HTA):
	test -x $(HTA_VENV)/bin/python || python3 -m venv $(HTA_VENV)
	$(HTA_VENV)/bin/python -m pip --disable-pip-version-check -q install '$(HTA)' 'pandas<3'
	touch $@

# QUICK=1: fewer repeats.
bench: $(VENV)/.ready-native $(HTA_VENV)/.ready-$(HTA)
	$(PY) -m bench.run $(if $(QUICK),--quick)

# FUZZ_COUNT=10000: fewer inputs. FUZZ_SEED=2: others.
fuzz: $(VENV)/.ready-native
	$(PY) -m tests.fuzz --count $(or $(FUZZ_COUNT),1000000) --seed $(or $(FUZZ_SEED),1)

# For the C part of the sampler; the tests also compile a fake driver for the real binding.
compiler:
	@if command -v cc > /dev/null && test -e /usr/include/stdio.h; then exit 0; fi; \
	if test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null; then \
	  echo 'this needs a C compiler: apt-get install -y gcc libc6-dev' >&2; exit 1; \
	fi; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev > /dev/null

# The tests scrape with the real Prometheus and check with its promtool. Its package would start a
# service; a policy that says no stands while it is installed, unless the machine has its own.
prometheus:
	@if command -v prometheus > /dev/null && command -v promtool > /dev/null; then exit 0; fi; \
	if test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null; then \
	  echo 'this needs Prometheus: apt-get install -y --no-install-recommends prometheus' >&2; exit 1; \
	fi; \
	policy=/usr/sbin/policy-rc.d; \
	if ! test -e $$policy; then \
	  trap "rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' > $$policy; chmod +x $$policy; \
	fi; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends prometheus > /dev/null

# The tests check the unit with systemd's own programs; none of it has to run.
systemd:
	@if command -v systemd-analyze > /dev/null; then exit 0; fi; \
	if test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null; then \
	  echo 'this needs systemd: apt-get install -y systemd' >&2; exit 1; \
	fi; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd > /dev/null

clean:
	rm -rf chopperd/*/native/*.so $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info bench/scratch
