# `make help` lists the targets. PYTHON=python3.12 make demo chooses the interpreter (3.10 to 3.13), and
# TORCH=2.15.0 make test another PyTorch than that of constraints.txt, in an environment of its own.
PYTHON ?= python3
TORCH  ?=
VENV   ?= .venv$(TORCH:%=-%)
WORKERS ?= auto
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SAMPLE := sample_graphs/llama3_8b_fsdp64_bw.fx.txt.gz
RESULT := out/llama3_8b_fsdp64_bw.run.fx.txt.gz
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-full test-rest check format docs docs-site samples golden bench artefacts fuzz dist smoke clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v[:2] <= (3, 13) else \
	  "commcc needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d; try: make PYTHON=python3.12" % v[:2])'
	@touch .writable 2>/dev/null && rm .writable || { echo "commcc is built in this folder, which cannot be written:" \
	  "copy it, or install a wheel (make dist) with pip" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' constraints.txt >$(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $@

venv: $(READY) ## make .venv with the package and its tools in it

demo: $(READY) ## tune a production-size graph and print before and after
	@mkdir -p $(dir $(RESULT))
	$(BIN)/commcc run $(SAMPLE) --preset auto -o $(RESULT)

# Tests start hundreds of short processes: byte code is kept for them, whatever the environment says.
test test-full test-rest: export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

# The layer test is part of `make check`.
test: $(READY) ## run the tests, on up to four cores; WORKERS=0 on one
	$(PYTEST) --ignore=tests/test_layers.py $(ARGS)

test-full: $(READY) ## run all tests, with all examples of property tests, campaigns and every job on real ranks
	$(PYTEST) --full $(ARGS)

test-rest: $(READY) ## run what `make test` leaves out of `make test-full`
	$(PYTEST) --full --rest $(ARGS)

check: $(READY) ## what CI checks: ruff, mypy, layers, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py
	$(BIN)/python tools/house_figures.py --check
	$(BIN)/python tools/cli_docs.py --check docs/cli.md
	$(BIN)/python tools/lint_docs.py --check docs/lint.md
	$(BIN)/python tools/api_docs.py --check docs/api.md

format: $(READY) ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## write docs/cli.md, docs/api.md and the rules in docs/lint.md again from the code
	$(BIN)/python tools/cli_docs.py docs/cli.md
	$(BIN)/python tools/api_docs.py docs/api.md
	$(BIN)/python tools/lint_docs.py docs/lint.md

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[docs]'
	@touch $@

# What builds it is installed once; building needs no network, and neither does reading.
docs-site: $(VENV)/.docs docs ## build the documentation as a site in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

samples: $(READY) ## make the sample graphs kept here; ARGS=--all makes every one
	$(BIN)/python -m commcc.capture.samples $(ARGS)

golden: $(READY) ## rewrite the expected halves of tests/cases/*.test
	$(BIN)/python -m tests.case_files

bench: $(READY) ## measure on the sample graphs, and against PyTorch's own passes
	$(BIN)/python benchmarks/bucket_figures.py $(ARGS)
	$(BIN)/python benchmarks/against_torch.py $(ARGS)

artefacts: $(READY) ## put what PyTorch's own tools write through every command
	$(BIN)/python benchmarks/artefacts.py --folder out/artefacts $(ARGS)

fuzz: $(READY) ## fuzz the readers for two minutes each, guided by coverage
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[fuzz]'
	$(BIN)/python tools/fuzz_readers.py --format text $(ARGS)
	$(BIN)/python tools/fuzz_readers.py --format pt2 $(ARGS)

dist: $(READY) ## build wheel and sdist into dist/
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .

smoke: $(READY) ## install what is in dist/ in environments of its own, and use it
	$(BIN)/python tools/smoke.py $(ARGS) dist/*.whl dist/*.tar.gz

clean: ## remove what make made; the sample graphs stay
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
