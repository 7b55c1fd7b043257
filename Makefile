# SPDX-License-Identifier: Apache-2.0

# Two targets are all that a newcomer needs: `make demo` and `make test`.
# Both install what they lack (Debian packages) and are silent when nothing
# is missing.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Debian keeps servers in sbin, and the Go tarball is often off the PATH.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin

GO       ?= go
FUZZTIME ?= 30s
# The privileges that loading BPF programs takes, for those who lack them.
SUDO     := $(if $(filter 0,$(shell id -u)),,sudo)
# Packages whose tests load programs, enter namespaces or attach to cgroups.
ROOT_PKGS := ./loader/... ./userspace/dial/... ./cmd/... ./test/e2e/...

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help
help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

.PHONY: build
build: ## build bin/egressd (needs Go alone)
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/egressd ./cmd/egressd

.PHONY: demo
demo: ## watch four workers break a limit, and egressd keep it (at most 40 s)
	@scripts/install-deps.sh demo
	@CGO_ENABLED=0 $(GO) build -trimpath -o bin/egressd ./cmd/egressd
	@$(SUDO) bin/egressd demo

.PHONY: test
test: ## run every test with the race detector (those that need root, too, when root)
	@scripts/install-deps.sh test
	@scripts/test.sh free loose strict

.PHONY: test-root
test-root: ## run only the packages whose tests need root; refuses to run without
	@scripts/install-deps.sh test
	@[[ $$(id -u) == 0 ]] || { echo "make test-root: not root" >&2; exit 1; }
	@$(GO) build -o bin/tally ./test/tally
	@$(GO) test -race -json -p 1 -timeout 20m $(ROOT_PKGS) | bin/tally

.PHONY: test-vm
test-vm: ## boot the kernels of test/vm/kernels.txt (KERNELS="6.1 sid": only these) and run the tests of test/vm/tests.txt
	@scripts/install-deps.sh vm
	@$(GO) build -o bin/vm ./test/vm
	@bin/vm $(KERNELS)

.PHONY: bench
bench: ## measure side by side with nginx, HAProxy and Go; writes docs/BENCHMARKS.md (PROFILE=1: and profile egressd)
	@scripts/install-deps.sh bench $(if $(PROFILE),profile)
	@CGO_ENABLED=0 $(GO) build -trimpath -o bin/egressd ./cmd/egressd
	@$(GO) build -o bin/bench ./test/bench
	@bin/bench -egressd bin/egressd -out docs/BENCHMARKS.md $(if $(PROFILE),-profile bin/profile) $(BENCHFLAGS)

.PHONY: fuzz
fuzz: ## fuzz every parser for FUZZTIME (30s) each
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: generate
generate: ## rebuild what is committed but made: BPF objects (needs clang-19), docs/METRICS.md, the dashboard
	@scripts/install-deps.sh generate
	$(GO) generate ./...

.PHONY: generate-check
generate-check: ## prove that what is committed but made is what the sources make
	@scripts/install-deps.sh generate
	@scripts/generate-check.sh

.PHONY: lint
lint: ## gofmt, vet, staticcheck, shellcheck, clang-format
	@scripts/install-deps.sh lint
	@scripts/lint.sh $(STATICCHECK)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
