# `make run` serves on 127.0.0.1:8080, `make test` runs everything; both set up .venv first.
PYTHON ?= $(shell scripts/python)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help run test test-editor model check conformance chaos soak fuzz laws bench console lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## set up and serve on 127.0.0.1:8080 (ARGS="--port 9000" adds options)
	$(BIN)/toolgate serve $(ARGS)

test: $(VENV)/.test ## lint, types, architecture and all tests (ARGS="tests/http -k drain" picks some)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(if $(ARGS),scripts/test $(ARGS),scripts/all)

test-editor: $(VENV)/.test ## try the extension in a real VS Code, headless (fetches 340 MB once, takes minutes)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test-editor $(ARGS)

model: $(VENV)/.test ## try the embedded model itself: fetches 1.1 GB once, takes minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/model $(ARGS)

check: $(VENV)/.test ## lint and types only
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

chaos: $(VENV)/.test ## kill -9 a server 216 times over SQLite and PostgreSQL and count what is lost (ARGS="--rounds 20 --seed 1")
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(VENV)/.test ## play over 100,000 connections of random requests, bytes and frames, and see each answered or closed
	PYTHONPATH=$(CURDIR) TOOLGATE_ANSWER_CASES=$${TOOLGATE_ANSWER_CASES:-14000} $(BIN)/python -m pytest -q tests/laws/test_answers.py $(ARGS)

laws: $(VENV)/.test ## hold all laws to all cases, of which make test plays a slice: every combination, 10,000 cancellations (over an hour)
	PATH="$(CURDIR)/$(BIN):$$PATH" TOOLGATE_LAW_CASES=all TOOLGATE_ANSWER_CASES=14000 TEXT_LAWS=20 HYPOTHESIS_PROFILE=explore \
		scripts/test tests/laws tests/text_tools/test_laws.py tests/dialects/test_laws.py $(ARGS)

soak: $(VENV)/.test ## mixed traffic against a server for 30 minutes: failures, leaks, memory (ARGS="--minutes 5 --write")
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.soak $(ARGS)

conformance: $(VENV)/.test ## try every client API over every upstream API with real clients, and rewrite docs/conformance.md
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/conformance $(ARGS)

bench: $(VENV)/.test ## measure beside nginx, LiteLLM and Portkey, and rewrite docs/performance.md
	$(BIN)/python -m bench $(ARGS)

console: $(VENV)/.test ## build the web console from console/ into the package
	$(BIN)/python scripts/console

lock: $(VENV)/.test ## resolve the dependencies anew and pin them by hash
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/lock

clean: ## remove the virtual environment, the browser of the tests and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis console/node_modules tests/console/node_modules

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Toolgate needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python requirements/run.txt pyproject.toml
	@echo "Installing Toolgate into $(VENV) ..."
	$(PIP) install --no-deps --require-hashes -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: $(VENV)/.run requirements/test.txt
	@echo "Installing the test tools into $(VENV) ..."
	$(PIP) install --no-deps --no-compile --require-hashes -r requirements/test.txt
	@touch $@
