#!/usr/bin/env bash
# The whole test suite on this machine's adapter, at each subgroup size it can have, then without optional features.
# Arguments are filters for the test runner; with any, the doc tests are left out.
source "$(dirname "$0")/common.sh"

scripts/setup.sh
widths=(default)
if uses_lavapipe; then widths=(256 128 512); fi # subgroups of 8 (what it takes by itself), 4 and 16

runs=()
for width in "${widths[@]}"; do
    [ "$width" = default ] || export LP_NATIVE_VECTOR_WIDTH=$width
    runs+=("width-$width")
    run_suite "width-$width" "$@"
done
unset LP_NATIVE_VECTOR_WIDTH
# What a browser or an old GPU leaves us: no subgroups, no 16-bit types, no timestamps.
runs+=(portable)
WGPU_ATTENTION_PORTABLE=1 run_suite portable "$@"
[ $# -gt 0 ] || cargo test --doc

echo
for run in "${runs[@]}"; do
    printf '%s: %s\n' "$run" "$(closing_lines "$run" | paste -sd ' ')"
done
