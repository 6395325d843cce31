# `make demo` and `make test` set everything up by themselves; see `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
# `make demo TORCH=cpu` takes the small torch without CUDA, from PyTorch's own index; left out, what pip finds.
TORCH ?=
TORCH_INDEX := $(if $(TORCH),--index-url https://download.pytorch.org/whl/$(TORCH))
# Small models are fastest on one thread, and tests run in as many processes as there are cores.
export OMP_NUM_THREADS ?= 1
# Compiled once, not by each of the processes that tests start.
export PYTHONDONTWRITEBYTECODE =

.PHONY: gpu-queue gpu-packages help demo test test-long page-test cluster-test share-test site site-test torture check learn bench gpu docs costs format dist clean
help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lengthwise needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_INDEX) torch==2.13.0
	$(PIP) -e .
	@touch $(READY)

# What tests and checks need, on top of the package.
$(DEV): $(READY)
	$(PIP) -e '.[dev]'
	@touch $(DEV)

demo: $(READY) ## train two models on short sums, test them on long ones, show the picture (minutes; TORCH=cpu: without CUDA)
	$(BIN)/lengthwise demo

test: $(DEV) ## all tests, in minutes
	$(BIN)/pytest -n 2 --dist worksteal

test-long: $(DEV) ## the same laws on more examples: every recipe, a thousand problems per length
	LENGTHWISE_LONG=1 $(BIN)/pytest -n 2 --dist worksteal

page-test: $(DEV) ## the pages in a real browser (Chromium): minutes
	$(PIP) -e '.[browser]'
	LENGTHWISE_LONG=1 LENGTHWISE_PAGE_PROBLEMS=300 $(BIN)/pytest -rs tests/browser

# trackio asks for an older pillow than is pinned; what is used of it needs none.
share-test: $(DEV) ## trackers with their real libraries, which are installed for it
	$(PIP) -e '.[tensorboard,wandb]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps trackio gradio-client brotli orjson
	LENGTHWISE_LONG=1 $(BIN)/pytest tests/share/test_real_trackers.py

site: $(DEV) ## the documentation site, build/site/index.html: offline, strictly checked (notebooks train, once)
	$(PIP) -e '.[site]'
	$(BIN)/python docs/site/build.py build

site-test: site ## the site in a real browser (Chromium), from disk
	$(PIP) -e '.[browser]'
	LENGTHWISE_LONG=1 $(BIN)/pytest -rs tests/browser/test_site.py

torture: $(DEV) ## kills, signals, races, failing disks, hostile input: ten minutes, or N times as long; goes on where it was
	$(BIN)/python -m tests.torture --times $(or $(N),1)

check: $(DEV) ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

learn: $(DEV) ## the slow studies, hours on two cores: those in results/
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

gpu: $(DEV) ## what only a GPU can show, in a quarter of an hour; the table is bench/gpu.md
	$(PIP) -e '.[bench]'
	$(BIN)/python bench/gpu.py

MINUTES ?= 12
# Runs where torch finds a GPU: without an environment too, if this Python has the dependencies (see docs/how-to/gpu.md).
gpu-queue: ## MINUTES=12 of any GPU: a check, then the published runs that are not done continue, under long/
	PYTHONPATH=.:$(CURDIR)/build/gpu-packages $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) bench/gpu_queue.py --minutes $(MINUTES) $(QUEUE)

gpu-packages: ## what gpu-queue needs beside torch, into build/gpu-packages, for a machine without a network
	$(PYTHON) -m pip install -q --target build/gpu-packages --no-deps rich safetensors filelock jaxtyping wadler-lindig pytorch-optimizer markdown-it-py mdurl pygments

cluster-test: $(DEV) ## a Slurm and a Ray cluster of two nodes on this machine: set up, used, hurt, taken down (half an hour)
	$(PIP) -e '.[ray]'
	@command -v slurmctld slurmd munged > /dev/null || echo "Slurm is NOT tested: there is no slurmctld, slurmd or munged; apt-get install slurmctld slurmd munge"
	LENGTHWISE_CLUSTER=1 $(BIN)/pytest -rs tests/jobs/test_cluster.py

bench: $(DEV) ## speed, as ratios: one JSON line per claim
	$(PIP) -e '.[bench]'
	@for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

docs: $(DEV) ## draw the architecture, and fill in what the pages quote
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python docs/fill.py

costs: $(DEV) ## measure what a step of every recipe costs, of those not measured before: for --dry-run and show (half an hour)
	$(BIN)/python docs/measure_costs.py

format: $(DEV) ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(DEV) ## sdist and wheel, checked, installed on the oldest and the newest Python, and asked
	$(PIP) -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/try_install.py dist

clean: ## remove the environment
	rm -rf $(VENV)
