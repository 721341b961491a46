# The commands of the README and of CONTRIBUTING.md; continuous integration calls the same ones.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-bounds test-browser test-clients test-cloud bench check build docs install clean

demo: .venv/train ## the whole way on the documentation on this machine, in about five minutes
	.venv/bin/bertie demo $(DEMO)

# Tests start many processes. Without compiled files, each would compile bertie again.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/dev ## the test suite
	.venv/bin/python -m pytest --numprocesses 2 $(PYTEST)

test-bounds: .venv/dev ## the tests of text and corpus, with kernels that check every index
	BERTIE_BOUNDS_CHECK=1 .venv/bin/python -m pytest tests/text tests/corpus $(PYTEST)

test-browser: .venv/dev ## the server's page in headless Chromium, which is installed if missing; screenshots in build/page
	@command -v chromium > /dev/null || { apt-get update && apt-get install --yes chromium; } > /dev/null 2>&1 || \
		echo "test-browser: chromium cannot be installed here, so its tests are skipped"
	.venv/bin/python -m pytest -m browser -rs tests/browser $(PYTEST)

test-clients: .venv/dev .venv-clients/installed ## LangChain and LlamaIndex against a server, from a separate environment
	.venv/bin/python -m pytest -m slow -rs tests/inference/server/test_clients.py

test-cloud: .venv-cloud/installed ## s3:// against a local server, from a separate environment (300 MB)
	.venv-cloud/bin/python -m pytest -m slow -rs tests/base/test_storage.py

bench: .venv/bench .venv-tokenizers/installed ## every claim beside its strongest peer, in one table; some of it: make bench BENCH="training squad"
	.venv/bin/python benchmarks/bench.py $(BENCH)

check: .venv/dev ## what every change must pass: ruff, mypy, hadolint, the tests
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	# The benchmarks import each other as modules of their folder, and libraries that lack types or are missing.
	cd benchmarks && ../.venv/bin/mypy --config-file ../pyproject.toml --ignore-missing-imports \
		--allow-untyped-calls --allow-untyped-decorators --no-warn-unused-ignores .
	.venv/bin/hadolint Dockerfile
	$(MAKE) test

build: .venv/dev ## wheel and sdist in dist/; the wheel is tried in an environment without the checkout
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt .venv/bin/python -m build --quiet
	.venv/bin/python scripts/check_wheel.py dist

# With --quiet, --strict would count no warnings.
docs: .venv/dev .venv/docs ## the documentation as a site in site/; rewrites docs/api.md and docs/settings.md from the docstrings
	.venv/bin/python scripts/make_api_page.py
	.venv/bin/python scripts/make_settings_page.py
	.venv/bin/mkdocs build --strict

install: .venv/dev ## everything a developer needs, in .venv

clean:
	rm -rf .venv .venv-clients .venv-cloud .venv-tokenizers demo dist site

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/train: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[train,serve]'
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@

.venv/bench: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[bench]'
	@touch $@

.venv/docs: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[docs]'
	@touch $@

# tokenizers 1.0 cannot be installed beside transformers.
.venv-tokenizers/installed:
	$(PYTHON) -m venv .venv-tokenizers
	.venv-tokenizers/bin/python -m pip install --quiet tokenizers==1.0.0rc3
	@touch $@

.venv-clients/installed: tests/clients/requirements.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --requirement tests/clients/requirements.txt
	@touch $@

.venv-cloud/installed: tests/base/cloud_requirements.txt constraints.txt
	$(PYTHON) -m venv .venv-cloud
	.venv-cloud/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[train,data]' --requirement tests/base/cloud_requirements.txt
	@touch $@
