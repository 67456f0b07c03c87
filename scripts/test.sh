#!/usr/bin/env bash
# The whole test suite on this machine's adapter, then golden cases and random shapes at the other subgroup
# sizes that it can have, and without optional features.
#   --thorough: everything at every size, the slowest tests too.
# Other arguments are filters for the test runner; with any, the doc tests are left out.
source "$(dirname "$0")/common.sh"

thorough=false
if [ "${1:-}" = --thorough ]; then
    thorough=true
    shift
fi
scripts/setup.sh
widths=(default)
if uses_lavapipe; then widths=(256 128 512); fi # subgroups of 8 (what it takes by itself), 4 and 16

runs=()
# once NAME [FILTER..]: everything the first time, then what depends on the device's kernels.
once() {
    runs+=("$1")
    if $thorough; then
        # shellcheck disable=SC2046 # two words
        run_suite "$@" $(with_ignored)
    elif [ ${#runs[@]} -eq 1 ] || [ $# -gt 1 ]; then
        run_suite "$@"
    else
        WGPU_ATTENTION_SUBSET=1 run_suite "$1" --test golden --test property --test mla --test rope --test device
    fi
}
for width in "${widths[@]}"; do
    [ "$width" = default ] || export LP_NATIVE_VECTOR_WIDTH=$width
    once "width-$width" "$@"
done
unset LP_NATIVE_VECTOR_WIDTH
# What a browser or an old GPU leaves us: no subgroups, no 16-bit types, no timestamps.
WGPU_ATTENTION_PORTABLE=1 once portable "$@"
[ $# -gt 0 ] || cargo test --doc

echo
for run in "${runs[@]}"; do
    printf '%s: %s\n' "$run" "$(closing_lines "$run" | paste -sd ' ')"
done
