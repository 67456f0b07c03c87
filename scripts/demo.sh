#!/usr/bin/env bash
# The first thing to run in a fresh clone: finds or installs a Vulkan driver, then checks the kernels on it.
source "$(dirname "$0")/common.sh"

scripts/setup.sh
exec cargo run --release -- check "$@"
