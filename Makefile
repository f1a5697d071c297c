# make quickstart   train a small agent on this machine's CPU and watch it learn
# make test         the fast tests (minutes)
# make check        style, types, architecture
# An active virtual environment is used, with its torch if it has one; else .venv is made.
# PYTHON, VENV, TORCH_INDEX (a wheel index for torch) and PIP_INDEX_URL may be set.

PYTHON ?= python3
VENV ?= $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check
MARK := $(VENV)/.installed

.PHONY: quickstart test test-ci test-long check format bench install dev clean

quickstart: install
	$(BIN)/agentrl quickstart

test: dev
	$(BIN)/python -m pytest -m "not ci and not long and not gpu"

test-ci: dev
	$(BIN)/python -m pytest -m "ci and not gpu" --timeout 600

test-long: dev
	$(BIN)/python -m pytest -m "long and not gpu" --timeout 7200

check: dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest tests/architecture

format: dev
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: dev
	for file in benchmarks/*.py; do echo "== $$file"; OMP_NUM_THREADS=1 $(BIN)/python $$file || exit 1; done

install: $(MARK)-train
dev: $(MARK)-dev

$(MARK)-train: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -U pip
	@if $(BIN)/python -c "import torch" 2>/dev/null; then echo "using the torch of $(VENV)"; else \
		echo "installing torch into $(VENV): about 200 MB for a CPU, several GB for CUDA (TORCH_INDEX chooses)"; \
		$(PIP) install -q -c constraints.txt torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)); fi
	@echo "installing the packages of pyproject.toml into $(VENV): about 300 MB"
	$(PIP) install -q -e ".[train]"
	@touch $@

$(MARK)-dev: $(MARK)-train
	$(PIP) install -q -e ".[train,dev]"
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
