# Short names for the commands. Each has --help, and takes more arguments in ARGS: make plan ARGS=--help

STACK ?= local
TIER ?=
ARGS ?=
PYTHON ?= python3

TIERS := core program policy promql local cluster
RUN := .venv/bin/python -m
# Another lock is another stamp, so a stale environment is brought up to date by whatever is run next.
STAMP := .venv/.installed-$(shell cat requirements-bootstrap.lock requirements.lock pyproject.toml | cksum | tr -cd 0-9)

.PHONY: help up down status plan render check smoke load capacity shell toolchain test lint

help: ## This list
	@echo "make TARGET [STACK=$(STACK)] [TIER=core] [ARGS=--help]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' Makefile

up: $(STAMP) ## Embedded Kubernetes with stack local, tested; needs root on Linux
	@echo "  ... reading stack local and looking for what is built" >&2
	@$(RUN) scripts.up $(ARGS)

down: $(STAMP) ## Remove the embedded cluster and everything of it
	@$(RUN) scripts.down $(ARGS)

status: $(STAMP) ## Health of each part of the embedded cluster, with its log
	@$(RUN) scripts.status $(ARGS)

plan: $(STAMP) ## What STACK would deploy, and why each value became what it is
	@$(RUN) scripts.plan --stack $(STACK) $(ARGS)

smoke: $(STAMP) ## Test what is deployed of STACK, in any cluster
	@$(RUN) scripts.smoke --stack $(STACK) $(ARGS)

load: $(STAMP) ## Load a workload of STACK and show latency, throughput, errors
	@$(RUN) scripts.load --stack $(STACK) $(ARGS)

render: $(STAMP) ## manifests/STACK: what STACK puts into the cluster, secrets redacted
	@$(RUN) scripts.render --stack $(STACK) $(ARGS)

check: $(STAMP) ## What must not be deployed: the rules over STACK, without a cluster
	@$(RUN) scripts.check --stack $(STACK) $(ARGS)

capacity: $(STAMP) ## GPUs and cost for a load, without a stack; alone: an example
	@$(RUN) scripts.capacity $(ARGS)

shell: $(STAMP) ## A shell with kubectl and pulumi for the embedded cluster
	@$(RUN) scripts.shell $(ARGS)

toolchain: $(STAMP) ## Build or find all programs and images
	@$(RUN) local.toolchain build $(ARGS)

test: $(STAMP) ## All tests, or those of one TIER: core program policy promql local cluster
	$(if $(filter-out $(TIERS),$(TIER)),$(error TIER=$(TIER) is not one of: $(TIERS)))
	@$(RUN) pytest $(if $(TIER),-m $(TIER)) $(ARGS)

lint: $(STAMP) ## Format, lint, types, import rules; generated files are current
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo
	@$(RUN) scripts.schema --check
	@$(RUN) scripts.render --check

$(STAMP): requirements-bootstrap.lock requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
		{ echo "error: there is no $(PYTHON): install Python 3.11 or newer, or name one with PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"error: $(PYTHON) is \
	Python {v[0]}.{v[1]}, needed is 3.11 or newer: name one with PYTHON=")'
	@echo "  ... Python packages into .venv" >&2
	@$(PYTHON) -m venv .venv || \
		{ echo "error: $(PYTHON) cannot make .venv: on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@$(RUN) pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.lock
	@.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
	@rm -f .venv/.installed-*
	@touch $@
