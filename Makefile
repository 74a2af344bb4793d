# One command file for people and CI alike. `make` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MATURIN := maturin>=1.9.4,<2

# What the extension is built from: a change here, and only here, builds it again.
RUST := Cargo.toml Cargo.lock $(shell find router csrc/cpu -type f 2>/dev/null)

# A stamp says that a thing was done; it has the time at which that began.
SERVE := $(VENV)/.serve
TEST := $(VENV)/.test
BENCH := $(VENV)/.bench
BUILT := $(VENV)/.built

# What is built here runs here: kernels of other instruction sets are left to wheels. make build TEXTGEN_BUILD_ISAS= has all.
ifeq ($(origin TEXTGEN_BUILD_ISAS),undefined)
TEXTGEN_BUILD_ISAS := $(shell csrc/cpu/isas-here)
endif
export TEXTGEN_BUILD_ISAS
export PIP_DISABLE_PIP_VERSION_CHECK := 1
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help serve build test test-rust lint-test-rust test-python test-cpu-asan test-integration fuzz-api lint lint-rust lint-python lint-kernels format wheel \
  demo-model docs-settings docs-models clean bench-cpu bench-router bench-report bench-scheduler bench-startup bench-structured \
  bench-offline bench-serving gpu-check gpu-bench soak soak-restart image check-tools

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVE) $(BUILT) ## Serve a model: make serve [MODEL=folder or ORG/NAME] [PORT=3000] [ARGS="--flag value"]
	@exec $(BIN)/textgen-launcher $(if $(MODEL),--model-id "$(MODEL)") $(if $(PORT),--port "$(PORT)") $(ARGS)

build: $(SERVE) $(BUILT) ## Make .venv and build the router into it

test: $(TEST) $(BUILT) ## Build and run everything: linters, Rust, Python and integration tests
	@$(MAKE) --jobs 2 lint-python lint-test-rust lint-kernels
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --reruns 1 --rerun-show-tracebacks

# Everything below the router is the extension's own build; the router itself is sooner compiled and tested as it is.
test-rust: $(TEST) ## Run the router's own tests
	cargo test --release --quiet --workspace --config 'profile.release.package.textgen-router.opt-level=0'

# One after the other: both want the same folder of cargo's. Beside them runs mypy, on one core.
lint-test-rust: $(TEST)
	@$(MAKE) lint-rust
	@$(MAKE) test-rust

test-python: $(TEST) $(BUILT) ## Run the Python tests: make test-python [ARGS="-k name"]
	$(BIN)/python -m pytest tests $(ARGS)

test-cpu-asan: $(TEST) ## Run the tests of the CPU kernels under AddressSanitizer
	$(MAKE) --silent -C csrc/cpu SANITIZE=1
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  TEXTGEN_CPU_LIBRARY=$(CURDIR)/build/cpu-asan/libtextgen_cpu.so $(BIN)/python -m pytest tests/ops/cpu --timeout 1800 $(ARGS)

test-integration: $(TEST) $(BUILT) ## Run the server as a user starts it, with real clients and real faults
	$(BIN)/python -m pytest integration-tests $(ARGS)

fuzz-api: $(TEST) $(BUILT) ## Make up thousands of calls from the OpenAPI document, by schemathesis (some minutes)
	FUZZ_API_EXAMPLES=20 $(BIN)/python -m pytest integration-tests/test_openapi.py --timeout 3600 $(ARGS)

lint: $(TEST) $(BUILT) ## Check style, types and lints
	@$(MAKE) --jobs 2 --output-sync=line lint-rust lint-python lint-kernels

lint-rust: $(TEST)
	cargo fmt --check
	cargo clippy --release --quiet --workspace --all-targets --features python -- -D warnings

lint-python: $(TEST) $(BUILT)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/python -m mypy.stubtest textgen._router > .mypy_cache/stubtest.txt || { cat .mypy_cache/stubtest.txt; exit 1; }

# The kernels that the build left out, for errors.
lint-kernels:
	$(MAKE) --silent -C csrc/cpu check

format: $(TEST) ## Format all code
	cargo fmt
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

wheel: $(TEST) ## Build the wheel for publishing into dist/
	TEXTGEN_BUILD_ISAS= $(BIN)/maturin build --profile dist --out dist

demo-model: $(TEST) ## Train the built-in model again (about an hour on 2 cores)
	$(BIN)/python -m tools.demo_model $(ARGS)

docs-settings: $(SERVE) ## Write docs/settings.md from the table of settings
	$(BIN)/python -m textgen.launcher.docs > docs/settings.md

bench-router: $(BENCH) $(BUILT) ## Measure what a token costs in the router: make bench-router [ARGS="--only tokens"] [PEER_URL=http://... PEER_PID=...]
	cargo build --profile dist --quiet -p router-bench
	$(BIN)/python -m benchmark.router.run $(ARGS)
	$(BIN)/python -m benchmark.pages

soak: $(BENCH) ## A million requests of every kind, with the router's memory watched: make soak [ARGS="--requests 10000"]
	cargo build --profile dist --quiet -p router-bench
	$(BIN)/python -m benchmark.router.soak $(ARGS)

soak-restart: $(TEST) $(BUILT) ## Restart servers behind nginx under 100,000 requests: make soak-restart [ROLLING_REQUESTS=1000] [ROLLING_CLIENTS=16]
	ROLLING_REQUESTS=$(or $(ROLLING_REQUESTS),100000) ROLLING_CLIENTS=$(or $(ROLLING_CLIENTS),16) \
	  $(BIN)/python -m pytest integration-tests/test_rolling_restart.py -s $(ARGS)

image: ## Build the image for processors, from the wheel in dist/ if there is one: make image [ARGS="--build-arg TORCH_INDEX=..."]
	docker build -f docker/Dockerfile -t textgen $(addprefix --build-arg WHEEL=,$(lastword $(wildcard dist/*.whl))) $(ARGS) .

bench-scheduler: $(BENCH) ## Simulate the scheduler on devices and clusters that are not at hand (some minutes)
	$(BIN)/python -m benchmark.scheduler.run $(ARGS)
	$(BIN)/python -m benchmark.pages

bench-startup: $(BENCH) $(BUILT) ## Measure a start beside llama-server, vLLM and Transformers: make bench-startup [ARGS="--rounds 5"]
	$(BIN)/python -m benchmark.startup.run $(ARGS)
	$(BIN)/python -m benchmark.pages

bench-serving: $(BENCH) $(BUILT) ## Measure chats over HTTP beside vLLM's server and llama-server: make bench-serving [ARGS="--formats int8"]
	$(BIN)/python -m benchmark.serving.run $(ARGS)
	$(BIN)/python -m benchmark.pages

bench-offline: $(BENCH) $(BUILT) ## Measure a list of 1,000 prompts beside Transformers: make bench-offline [ARGS="--prompts 100"]
	$(BIN)/python -m benchmark.offline.run $(ARGS)
	$(BIN)/python -m benchmark.pages

bench-structured: $(BENCH) $(BUILT) ## Measure what schemas cost and save, beside other libraries: make bench-structured [ARGS="--rounds 3"]
	$(BIN)/maturin develop --release --extras bench,bench-structured
	cargo build --profile dist --quiet -p router-bench
	$(BIN)/python -m benchmark.structured.run $(ARGS)
	$(BIN)/python -m benchmark.pages

bench-cpu: $(BENCH) $(BUILT) ## Measure tokens a second on this processor beside llama.cpp and others: make bench-cpu [ARGS="--shapes S --formats int8"]
	$(BIN)/python -m benchmark.cpu.run $(ARGS)
	$(BIN)/python -m benchmark.pages

gpu-check: $(SERVE) $(BUILT) ## Check kernels, graphs and server on this machine's GPU (exit code 3: there is none): make gpu-check [ARGS="--json FILE"]
	$(BIN)/python -m textgen.gpu check $(ARGS)

gpu-bench: $(BENCH) $(BUILT) ## Measure this machine's GPU, beside torch, flash-attn and Transformers: make gpu-bench [ARGS="--minutes 9 --resume"]
	$(BIN)/python -m benchmark.gpu.run $(ARGS)
	$(BIN)/python -m benchmark.pages

bench-report: $(BENCH) ## Write docs/performance.md and the tables of docs/cpu.md from the results of all benchmarks
	$(BIN)/python -m benchmark.pages

docs-models: $(SERVE) ## Write docs/models.md from the families
	$(BIN)/python -m textgen.models.docs > docs/models.md

clean: ## Remove everything that was built
	rm -rf $(VENV) target dist build python/textgen/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- how the environment comes to be

check-tools:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "error: $(PYTHON) is missing; install Python 3.10 or newer (https://www.python.org/downloads), or name one: make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: $$($(PYTHON) --version) is too old; install Python 3.10 or newer, or name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { \
	  echo "error: $(PYTHON) cannot make environments; install its venv module (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@command -v cargo > /dev/null || { \
	  echo "error: cargo is missing; install Rust 1.88 or newer, see https://rustup.rs"; exit 1; }
	@cargo --version | awk '{ split($$2, v, "."); exit !(v[1] > 1 || v[2] >= 88) }' || { \
	  echo "error: $$(cargo --version) is too old; run: rustup update (Rust 1.88 or newer, see https://rustup.rs)"; exit 1; }
	@for tool in cc c++; do command -v $$tool > /dev/null || { \
	  echo "error: $$tool is missing; install a C and C++ compiler (on Debian and Ubuntu: apt install build-essential)"; exit 1; }; done

$(BIN)/maturin: | check-tools
	@echo "Making $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(MATURIN)"

# pip fetches packages while the router is being built; the maturin that installs then finds both done. $(1): extras
define install
	@touch $@.begun
	@$(BIN)/python -m tools.requirements $(1) > $@.requirements
	@$(BIN)/python -m pip install --requirement $@.requirements > $@.log 2>&1 & packages=$$!; \
	  $(BIN)/maturin develop --release --skip-install || { kill $$packages; exit 1; }; \
	  tail --follow --pid $$packages $@.log; wait $$packages
	@PIP_QUIET=1 $(BIN)/maturin develop --release --quiet $(addprefix --extras ,$(1))
endef

$(SERVE): pyproject.toml | $(BIN)/maturin
	@echo "Installing what serving needs and building the router (some minutes the first time)"
	$(call install)
	@cp -p $@.begun $(BUILT)
	@mv $@.begun $@

# The text-generation client asks for an older huggingface_hub than transformers does, and works with the newer one.
$(TEST): pyproject.toml | $(BIN)/maturin
	@echo "Installing what tests need and building the router (some minutes the first time)"
	$(call install,test lint)
	$(BIN)/python -m pip install --quiet --no-deps "text-generation>=0.7"
	@cp -p $@.begun $(BUILT)
	@cp -p $@.begun $(SERVE)
	@mv $@.begun $@

$(BENCH): pyproject.toml | $(SERVE) $(BUILT)
	@echo "Installing what plots need"
	@touch $@.begun
	$(BIN)/maturin develop --release --extras bench
	@mv $@.begun $@

$(BUILT): $(RUST) | $(SERVE)
	@echo "Building the router"
	@touch $@.begun
	@$(BIN)/maturin develop --release --skip-install
	@mv $@.begun $@
