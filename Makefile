# The two commands of the README, and what they stand on. Everything else is plain CMake.

PYTHON ?= python3
BUILD  ?= build
JOBS   ?=
DEVICE ?= cuda:0
PREFIX ?= /usr/local

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests build all python install demo quick test test-all test-rest endurance test-engines test-ray test-horovod test-deepspeed test-accelerator device-report test-wheel wheels test-wheels test-wheel-versions test-extension-versions program-wheel program-wheels program-wheel-macos test-program-wheel release test-torch-versions sanitizers portability portability-program bench docs format tidy clean

help:            ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-24s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:           ## install what is missing and create .venv with torch
	@scripts/setup.sh

setup-tests:     ## install what the tests need, too
	@scripts/setup.sh tests

build: setup     ## build the program, build/bimetal (Release)
	@scripts/build.sh $(BUILD) release bimetal $(JOBS)

all: setup-tests ## build everything, tests and examples too
	@scripts/build.sh $(BUILD) release all $(JOBS)

python: setup    ## build program and Python package; then PYTHONPATH=build/python
	@scripts/build.sh $(BUILD) release bimetal_python $(JOBS)
	@scripts/build.sh $(BUILD) release bimetal $(JOBS)

install: build   ## install program, libraries and headers; PREFIX=/usr/local
	@cmake --install $(BUILD) --prefix $(PREFIX)

demo: build      ## train a CNN on Fashion-MNIST with two unequal workers
	@$(BUILD)/bimetal demo

quick: setup-tests ## what the edited files reach, then the fastest unit tests: a minute after their build
	@[ -e $(BUILD)/build.ninja ] || scripts/build.sh $(BUILD) release all $(JOBS)
	@scripts/run_tests.py quick $(BUILD)

test: all        ## build, and test every public promise once: one real job of each strategy, one kill of each kind; MINUTES=N
	@scripts/run_tests.py test $(BUILD) $(if $(MINUTES),--minutes $(MINUTES))

test-all: all    ## everything but endurance; installs Ray, Slurm, sshd, DeepSpeed and compilers where they are missing
	@scripts/run_tests.py all $(BUILD)

test-rest: all   ## what test-all has beyond test, oldest results first; MINUTES=N: as much as there is time for; UNCHANGED=skip
	@scripts/run_tests.py rest $(BUILD) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(UNCHANGED),--unchanged $(UNCHANGED))

endurance: all   ## long runs, and random ones: SEEDS=N
	@BIMETAL_SEEDS=$(or $(SEEDS),100) scripts/run_tests.py endurance $(BUILD)

test-engines: all ## the tests that need Slurm, sshd and the like, which it installs (Debian)
	@scripts/test_engines.sh $(BUILD)

test-horovod: all ## install TensorFlow and run the tests of Horovod's API, with Keras, and the textbook's programs
	@scripts/install_tensorflow.sh
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -R '^python.(horovod|textbook)'

test-deepspeed: python ## install DeepSpeed below the build folder, and run its ZeRO on the backend
	@scripts/test_deepspeed.sh $(BUILD)

sanitizers: setup ## the torch-free core under TSan and ASan+UBSan, its parsers under libFuzzer
	@scripts/sanitizers.sh

test-ray: build python ## install Ray, and test bimetal.ray on real clusters on this machine
	@scripts/test_ray.sh $(BUILD)

test-accelerator: python ## jobs and package on DEVICE=cuda:0 (or mps, xpu:0) and a CPU beside it, held against one CPU
	@scripts/test_accelerator.sh "$(DEVICE)" "$(BUILD)"

device-report: python ## what DEVICE=mps (or cuda:0, xpu:0) does otherwise than a CPU, with test-accelerator's failures, as a report to send
	@.venv/bin/python scripts/device_report.py "$(DEVICE)"

test-wheel: setup ## build the Python package's wheel, install it into a scratch folder and use it
	@scripts/test_wheel.sh

test-torch-versions: python ## compile the package's sources with the headers of torch 2.11, 2.12, 2.14 and 2.15
	@.venv/bin/python tests/torch_headers/check_torch_headers.py $(BUILD)

wheels:          ## build wheels of the Python package for Linux, Windows and macOS that fit any torch (dist/)
	@scripts/wheels.sh

test-wheels: setup ## build the wheels; install the Linux one and use it; the others' libraries meet it (Wine, qemu)
	@scripts/test_wheels.sh

test-wheel-versions: ## use the Linux wheel of dist/ with torch 2.4 to 2.15, or VERSIONS="2.4.1 …": downloads gigabytes
	@scripts/test_wheel_versions.sh $(VERSIONS)

test-extension-versions: ## build and use the package with torch 2.14 and 2.15, or VERSIONS="2.15.0 …": downloads gigabytes
	@scripts/test_extension_versions.sh $(VERSIONS)

program-wheel: build python ## the program and the torch library as a wheel for Linux that fits the torch of .venv (dist/)
	@scripts/program_wheel.sh $(BUILD)/bimetal

program-wheels:  ## the same for each torch of VERSIONS="2.14.1 2.15.0", as pip installs it: downloads gigabytes
	@scripts/program_wheels.sh $(VERSIONS)

program-wheel-macos: setup ## the same for Macs with Apple silicon, cross-built
	@scripts/portability.sh program

test-program-wheel: build python ## build that wheel and the package's; install both and train with them
	@scripts/test_program_wheel.sh $(BUILD)

release: build python ## source archive, wheels and checksums in dist/, each installed and used; VERSIONS="2.15.0": wheels for these torches, too
	@scripts/release.sh $(BUILD) $(VERSIONS)

portability:     ## build the core for Windows and ARM64; their processes meet Linux ones (Wine, qemu)
	@scripts/portability.sh core

portability-program: setup ## build core and program for macOS, and compile what joins NCCL
	@scripts/portability.sh program

bench: setup-tests build ## the measurements that the README quotes (about 50 minutes)
	@.venv/bin/python bench/unequal_vs_torch.py
	@.venv/bin/python bench/speed_change.py
	@.venv/bin/python bench/disturbed.py
	@.venv/bin/python bench/ddp_vs_torch.py

docs:            ## build the documentation's site, build/docs, by mkdocs in an environment of its own
	@scripts/docs.sh $(BUILD)

format:          ## clang-format over the sources
	@git ls-files '*.h' '*.cpp' | xargs clang-format -i

tidy: all        ## clang-tidy over the torch-free core
	@git ls-files 'src/bimetal/base/*.cpp' 'src/bimetal/net/*.cpp' 'src/bimetal/rendezvous/*.cpp' \
	  'src/bimetal/comm/*.cpp' 'src/bimetal/balance/*.cpp' | xargs clang-tidy -p $(BUILD) --quiet

clean:           ## remove the build folders (.venv stays)
	@rm -rf build build-*
