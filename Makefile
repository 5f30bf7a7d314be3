# make demo | check | golden | test | compat | bench | fuzz: each makes its own virtual environment first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
TORCH := torch==2.13.0
# What the benchmarks compare with; its pandas must be older than 3 (it fails on some files).
HTA := HolisticTraceAnalysis==0.5.0
HTA_VENV := bench/scratch/hta-venv

# The parts of `test` after `check`; two to a core run side by side, as they wait as well as work.
PARTS := e2e integration-sampling integration-reports e2e-agent integration-agent \
  integration-traces integration-rest

.PHONY: demo check lint unit-covered unit-rest test integration $(PARTS) golden compat bench fuzz format \
  schema dashboards reference docs pictures wheels compiler prometheus systemd chromium clean

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
NATIVE := $(addprefix chopperd/sampling/native/,native.h plans.c ticks.c) \
  $(addprefix chopperd/traces/native/,between.h scanner.h text.h between.c file.c json.c keys.c names.c numbers.c rows.c scan.c strings.c)
$(VENV)/.ready-native: pyproject.toml $(NATIVE) $(VENV)/.ready-dev | compiler
	rm -f chopperd/*/native/*.so
	$(PIP) install --force-reinstall --no-deps -e .
	$(PY) -c 'from chopperd.sampling.native.library import native_library as n; assert n()'
	$(PY) -c 'from chopperd.traces.native.scanner import scanner_library as n; assert n()'
	touch $@

# Older versions of AMD's binding, whose structures differ: the tests build a library for each. Its
# wheels hold no library and are small. `test` takes the oldest and the installed one, `compat` also
# those between.
AMDSMI_OLDEST := $(VENV)/amdsmi/.ready-6.2.4
AMDSMI_BETWEEN := $(addprefix $(VENV)/amdsmi/.ready-,6.3.3 6.4.4)
$(VENV)/amdsmi/.ready-%: | $(VENV)/.ready-dev
	$(PIP) install --upgrade --no-deps --target $(VENV)/amdsmi/$* amdsmi==$*
	touch $@

# Grafana's own types of boards, and the compiler that checks them; both come from npm.
GRAFANA := $(VENV)/grafana/.ready-11.6.9
$(GRAFANA):
	npm install --prefix $(@D) --silent --no-audit --no-fund @grafana/schema@11.6.9 typescript@5.9.3
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
	$(PY) -m chopperd.report.forms.schema > chopperd/report/report.schema.json

dashboards: $(VENV)/.ready-dev
	$(PY) -m dashboards

# The generated parts of docs/, and the shape of a scrape that the tests expect.
reference: $(VENV)/.ready-dev
	$(PY) -m tests.reference_docs
	$(PY) -m tests.scrape_shape

# The pages as a site in build/site; mkdocs has an environment of its own.
DOCS_VENV := $(VENV)/docs
MKDOCS := mkdocs==1.6.1
$(DOCS_VENV)/.ready-$(MKDOCS):
	test -x $(DOCS_VENV)/bin/python || python3 -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check -q install '$(MKDOCS)'
	touch $@

docs: reference $(DOCS_VENV)/.ready-$(MKDOCS)
	$(DOCS_VENV)/bin/mkdocs build -q -f .mkdocs.yml

# Targets that run next to each other, longest first. Each shows its output whole when it is done; all
# come to their end whatever the others do, and where one fails so does this.
CORES := $(shell nproc)
# Caches are apart: each run would write the others' again.
PYTEST = $(PY) -m pytest -q -o cache_dir=.pytest_cache/$@
SIDE_BY_SIDE := --no-print-directory --keep-going --output-sync=target

check: $(VENV)/.ready-dev
	$(MAKE) $(SIDE_BY_SIDE) -j$(CORES) unit-covered lint unit-rest

lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff format --check -q .
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/mypy chopperd dashboards tests bench
	PATH=$(VENV)/bin:$$PATH $(VENV)/bin/lint-imports

# The unit tests in two parts. The first covers the parts that every figure rests on to the last
# branch; the second is whatever is not in the first.
COVERED := model correlate export live.readings live.traced api.history
COVERING := $(addprefix tests/unit/,model correlate export live api report traces)

unit-covered: $(VENV)/.ready-dev
	$(PYTEST) $(COVERING) $(addprefix --cov=chopperd.,$(COVERED)) \
	  --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

unit-rest: $(VENV)/.ready-dev
	$(PYTEST) tests/unit $(addprefix --ignore=,$(COVERING))

READY_TEST := $(VENV)/.ready-native prometheus systemd chromium $(VENV)/.ready-$(TORCH) $(AMDSMI_OLDEST)

test: check $(READY_TEST)
	$(MAKE) $(SIDE_BY_SIDE) -j$$((2 * $(CORES))) $(PARTS) golden

# What each part holds; `integration-rest` and `e2e` are whatever is in none of the others.
E2E_AGENT := $(wildcard tests/e2e/test_agent*.py)
AGENT := $(addprefix tests/integration/,agent api client live)
REPORTS := $(wildcard tests/integration/test_*.py)
SAMPLING := tests/integration/sampling
TRACES := tests/integration/traces
e2e: WHAT := tests/e2e $(addprefix --ignore=,$(E2E_AGENT))
e2e-agent: WHAT := $(E2E_AGENT)
integration-agent: WHAT := $(AGENT)
integration-reports: WHAT := $(REPORTS)
integration-sampling: WHAT := $(SAMPLING)
integration-traces: WHAT := $(TRACES)
integration-rest: WHAT := tests/integration \
  $(addprefix --ignore=,$(AGENT) $(REPORTS) $(SAMPLING) $(TRACES))

$(PARTS): $(READY_TEST)
	$(PYTEST) $(WHAT)

integration: $(filter integration-%,$(PARTS))

# Pictures of the live page and of an HTML report, of a real demo in a real browser: two minutes.
pictures: $(VENV)/.ready-native chromium
	$(PY) -m tests.pictures

# Whether everything that users, scripts and stores see is what tests/golden/expected.json holds, as
# after a refactoring. `python -m tests.golden --record` writes that file again.
golden: $(VENV)/.ready-native
	$(PY) -m tests.golden

# The versions of AMD's binding between the oldest and the newest, and Grafana's types of boards.
compat: $(READY_TEST) $(AMDSMI_BETWEEN) $(GRAFANA)
	$(PYTEST) tests/integration/devices tests/integration/deploy -m compat

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
	test ! -d ../shared/traces || $(PY) -m tests.integration.reference_holders ../shared/traces
	$(PY) -m tests.fuzz --count $(or $(FUZZ_COUNT),1000000) --seed $(or $(FUZZ_SEED),1)
	$(PY) -m tests.fuzz.pickles --count $(or $(PICKLES_COUNT),10000) --seed $(or $(FUZZ_SEED),1)

# Wheels with the C parts built, so that users need no compiler.
wheels:
	deploy/wheels.sh

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

# Pages and HTML reports are looked at in a real browser.
chromium:
	@if command -v chromium > /dev/null; then exit 0; fi; \
	if test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null; then \
	  echo 'this needs Chromium: apt-get install -y --no-install-recommends chromium' >&2; exit 1; \
	fi; \
	apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null

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
