# The README's two commands, and what CI calls.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test check install clean

demo: .venv/train ## the main job on Python's own documentation, in about five minutes
	.venv/bin/bertie demo $(DEMO)

test: .venv/dev ## the test suite
	.venv/bin/python -m pytest --numprocesses 2 $(PYTEST)

check: .venv/dev ## what a change must pass
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	$(MAKE) test

install: .venv/dev ## everything a developer needs, in .venv

clean:
	rm -rf .venv demo

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/train: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[train]'
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@
