# The two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TABLES := $(VENV)/.operator-tables

.PHONY: demo test lint docs docs-check bench accuracy record clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $(STAMP)

# 82 MB that only tests and accuracy need; where they cannot be had, their tests are skipped
$(TABLES): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps aiconfigurator-core==0.12.0 \
		|| echo "no operator tables: tests that need them are skipped" >&2
	touch $(TABLES)

demo: $(STAMP)  ## once round the loop on packaged recordings
	$(BIN)/sojourn demo -o sojourn-report.html

test: $(STAMP) $(TABLES)  ## the whole suite
	$(BIN)/python -m pytest -n 2 -q

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)  ## write the generated reference pages
	$(BIN)/python -m sojourn.cli.reference docs/reference

docs-check: $(STAMP)  ## fail if a reference page is not what the code says
	$(BIN)/python -m sojourn.cli.reference --check docs/reference

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

accuracy: $(STAMP) $(TABLES)  ## predicted against measured, needs the measured files beside the checkout
	PYTHONPATH=src:benchmarks $(BIN)/python -m accuracy

record:  ## record the incident again with a real engine (see examples/incident/README.md)
	$(PYTHON) examples/incident/record.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis sojourn-report.html
