# `make demo` and `make test` set everything up by themselves; see `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Small models are fastest on one thread, and tests run in as many processes as there are cores.
export OMP_NUM_THREADS ?= 1
# Compiled once, not by each of the processes that tests start.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-long page-test cluster-test share-test site site-test torture check learn bench gpu docs format dist clean
help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lengthwise needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY) ## train two models on short sums, test them on long ones, show the picture (minutes)
	$(BIN)/lengthwise demo

test: $(READY) ## all tests, in minutes
	$(BIN)/pytest -n 2 --dist worksteal

test-long: $(READY) ## the same laws on more examples: every recipe, a thousand problems per length
	LENGTHWISE_LONG=1 $(BIN)/pytest -n 2 --dist worksteal

page-test: $(READY) ## the pages in a real browser (Chromium): minutes
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[browser]'
	LENGTHWISE_LONG=1 LENGTHWISE_PAGE_PROBLEMS=300 $(BIN)/pytest -rs tests/browser

# trackio asks for an older pillow than is pinned; what is used of it needs none.
share-test: $(READY) ## trackers with their real libraries, which are installed for it
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[tensorboard,wandb]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps trackio gradio-client brotli orjson
	LENGTHWISE_LONG=1 $(BIN)/pytest tests/test_share.py

site: $(READY) ## the documentation site, build/site/index.html: offline, strictly checked (notebooks train, once)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[site]'
	$(BIN)/python docs/site/build.py build

site-test: site ## the site in a real browser (Chromium), from disk
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[browser]'
	LENGTHWISE_LONG=1 $(BIN)/pytest -rs tests/browser/test_site.py

torture: $(READY) ## kills, signals, races, failing disks, hostile input: ten minutes, or N times as long; goes on where it was
	$(BIN)/python -m tests.torture --times $(or $(N),1)

check: $(READY) ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

learn: $(READY) ## the slow trainings, hours on two cores: the studies in results/
	$(BIN)/lengthwise reproduce pairs --seeds 5
	$(BIN)/lengthwise reproduce parity --seeds 3
	$(BIN)/lengthwise reproduce looped --tasks parity --methods fop-loop-adaptive --seeds 5
	$(BIN)/lengthwise reproduce looped --tasks parity
	$(BIN)/lengthwise reproduce looped --scale half --tasks all --publish
	$(BIN)/lengthwise reproduce looped --tasks copy,addition,binary-sum,multiplication,unique-set --methods fop-loop-adaptive,looped --seeds 3 --curve-samples 32
	$(BIN)/lengthwise reproduce ablations
	$(BIN)/lengthwise reproduce abacus --tasks addition,multiplication,sorting,bitwise-or
	$(BIN)/lengthwise reproduce abacus --tasks splits,positions --seeds 3
	$(BIN)/lengthwise reproduce notebook
	$(BIN)/lengthwise reproduce controls --seeds 3
	$(BIN)/lengthwise reproduce controls --tasks parity,copy,addition,binary-sum,multiplication,unique-set --seeds 3
	$(BIN)/lengthwise reproduce retran --sizes all --seeds 2

gpu: $(READY) ## what only a GPU can show, in ten minutes; the table is bench/gpu.md
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python bench/gpu.py

cluster-test: $(READY) ## a Slurm and a Ray cluster of two nodes on this machine, and sweeps: set up, used, hurt, taken down (half an hour)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@command -v slurmctld slurmd munged > /dev/null || echo "Slurm is NOT tested: there is no slurmctld, slurmd or munged; apt-get install slurmctld slurmd munge"
	LENGTHWISE_CLUSTER=1 $(BIN)/pytest -rs tests/test_cluster.py

bench: $(READY) ## speed, as ratios: one JSON line per claim
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

docs: $(READY) ## draw the architecture, and fill in what the pages quote
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python docs/fill.py

format: $(READY) ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(READY) ## sdist and wheel, checked, installed on the oldest and the newest Python, and asked
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/try_install.py dist

clean: ## remove the environment
	rm -rf $(VENV)
