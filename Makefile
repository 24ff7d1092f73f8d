# Two commands set everything up: `make demo` and `make test`. They install what is missing.
.PHONY: help demo test lint bench build services-up services-down
.DEFAULT_GOAL := help

PROFILE := fast
BIN := target/$(PROFILE)

help:
	@sed -n 's/^## //p' Makefile

## make demo           build, start private servers, place 1,000 orders, show what became of them
demo:
	@scripts/demo

## make test           start private servers and run every test against them
test:
	@scripts/test

## make lint           formatting, clippy, shell scripts
lint:
	@scripts/lint

## make bench          rates, latency, memory, takeover and idle cost of the relay
bench:
	@scripts/bench

## make services-up    private MySQL, MariaDB and RabbitMQ on ports of their own
services-up:
	@scripts/services up

## make services-down  stop them
services-down:
	@scripts/services down

build:
	@cargo build --profile $(PROFILE) --workspace --bins
