# SPDX-License-Identifier: Apache-2.0
# Esker: everything that a developer or a visitor runs. `make` lists it.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build install c install-c deb docs test advisories demo demo-live soak mutants peers \
	compare compare-outgrown compare-imd compare-segments compare-mount compare-live-mounts compare-mpi-io compare-workbench clean

CARGO ?= cargo
# Minutes that the long campaigns may take.
MINUTES ?= 60
# Where `make install` puts things.
PREFIX ?= /usr/local
# The S3 client is a long build, so it is a feature of the command.
FEATURES := $(shell grep -qs '^s3 *=' crates/cli/Cargo.toml && echo --features s3)

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing to build and to test
	@scripts/setup.sh build test

build: ## Build the esker command, optimized
	@scripts/setup.sh build
	$(CARGO) build --release -p esker-cli $(FEATURES)

install: ## Install the command, manual pages and completions below PREFIX (/usr/local; DESTDIR for packages)
	@DESTDIR="$(DESTDIR)" scripts/install.sh "$(PREFIX)"

c: ## Build the C library, optimized
	@scripts/setup.sh build
	$(CARGO) build --release -p esker-c --features s3

install-c: c ## Install the C library, headers and the Fortran module below PREFIX
	@DESTDIR="$(DESTDIR)" scripts/install_c.sh "$(PREFIX)"

deb: build ## Make a Debian package, target/debian/esker.deb
	@scripts/setup.sh package
	@scripts/package.sh

docs: ## Make a book of README, guides, designs and formats, target/book/index.html
	@scripts/setup.sh docs
	@scripts/docs.sh

test: ## Install what is missing, then check format, lints, style, all tests and a little fuzzing
	@scripts/test.sh

advisories: ## Check dependencies for known vulnerabilities, which needs GitHub
	@scripts/setup.sh build deny
	@scripts/deny.sh advisories

demo: build ## Install what is missing, build, and run the main job on real files
	@scripts/demo.sh

demo-live: ## The same for a live namespace: servers, mounts, a job of ranks, a server that is killed
	@scripts/setup.sh build test
	$(CARGO) build --release -p esker-cli -p esker --features esker-cli/s3 --bins --example directory_of_ranks
	@scripts/demo_live.sh

soak: ## Run the long campaigns for MINUTES (60)
	@scripts/setup.sh build test soak
	@scripts/soak.sh $(MINUTES)

mutants: ## Revert each mend of a defect in turn and show which no test notices
	@scripts/setup.sh build test
	@scripts/mutants.sh

peers: ## Build the rival engines to compare with, about 10 minutes
	@scripts/setup.sh build
	$(MAKE) -C peers

compare: build peers ## Run Esker and its rivals in turn and print the ratios
	@scripts/setup.sh compare
	python3 scripts/compare.py

compare-outgrown: build peers ## Stats of 40 M files with 256 MiB of cache on every side
	@scripts/setup.sh compare
	python3 scripts/compare_outgrown.py

compare-imd: build peers ## The same for indexed directories
	@scripts/setup.sh compare
	python3 scripts/compare_imd.py

compare-segments: build peers ## The same for segments of shared files
	@scripts/setup.sh compare
	python3 scripts/compare_segments.py

compare-mount: build ## Run a null file system, ext4 and a mount in turn and print the ratios
	@scripts/setup.sh compare
	@$(MAKE) -C peers mounts
	python3 scripts/compare_mount.py

compare-live-mounts: build ## Run JuiceFS and mounts of a live namespace in turn and print the ratios
	@scripts/setup.sh compare-live-mounts
	@$(MAKE) -C peers mounts juicefs
	python3 scripts/compare_mount.py --systems juicefs,live --only metadata --core -1

compare-mpi-io: build c ## Write one file by ranks of MPI on ext4 and on Esker in turn and print the ratios
	@scripts/setup.sh mpi
	python3 scripts/compare_mpi_io.py

compare-workbench: build ## Run the workbench, fio, bonnie++, dbench and mdtest in turn on tmpfs
	@scripts/setup.sh compare-workbench
	python3 scripts/compare_workbench.py

clean: ## Remove everything that was built
	$(CARGO) clean
	@if [ -f peers/Makefile ]; then $(MAKE) -C peers clean; fi
	@if [ -f fuzz/Cargo.toml ]; then $(CARGO) clean --manifest-path fuzz/Cargo.toml; fi
