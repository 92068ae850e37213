# All cargo calls share one target folder outside of the tree, so that a fresh clone builds warm.
ifdef MAKBUZ_TARGET_DIR
export CARGO_TARGET_DIR := $(MAKBUZ_TARGET_DIR)
else
export CARGO_TARGET_DIR ?= $(HOME)/.cache/makbuz/target
endif

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run run-full test test-long test-all lint bench

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

run: ## build, and serve with the embedded default (SQLite) in ./makbuz-dev/
	@cargo build --locked
	@exec "$(CARGO_TARGET_DIR)/debug/makbuz" serve

run-full: ## the same on PostgreSQL and RabbitMQ; sends one event and shows the message taken from the queue
	@cargo build --locked --bins --examples
	@services="$$(tests/services.sh)"; eval "$$services"; exec examples/full.sh "$(CARGO_TARGET_DIR)/debug"

test: ## everything the tests need, then the tests
	@services="$$(tests/services.sh)"; eval "$$services"; tests/run.sh normal

test-long: ## the long tests alone: the providers' own SDKs, fifty kills
	@services="$$(tests/services.sh)"; eval "$$services"; tests/run.sh long

test-all: ## all tests, the long ones too
	@services="$$(tests/services.sh)"; eval "$$services"; \
	totals="$$(mktemp)"; export MAKBUZ_TOTALS="$$totals"; status=0; \
	tests/run.sh normal || status=1; \
	tests/run.sh long || status=1; \
	awk '{p += $$1; f += $$2} END {print p + 0 " passed, " f + 0 " failed"}' "$$totals"; rm -f "$$totals"; exit $$status

lint: ## formatting, clippy, and the shell scripts' own test
	@cargo fmt --check
	@cargo clippy --locked --all-targets -- -D warnings
	@tests/services.test.sh

bench: ## the gateway against the hand-written service of benches/baseline, on PostgreSQL and RabbitMQ
	@services="$$(tests/services.sh)"; eval "$$services"; benches/compare.sh
