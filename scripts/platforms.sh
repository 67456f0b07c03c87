#!/usr/bin/env bash
# The whole test suite on other software adapters: scripts/platforms.sh [mesa25] [swiftshader]; both if none is named.
# Mesa 25.0 is what Debian 13 and current Ubuntu bring; SwiftShader has subgroups of 4 and no 16-bit types.
source "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || set -- mesa25 swiftshader
unset WGPU_ADAPTER_NAME # would exclude the adapter meant

rows=() failed=0
for platform; do
    case $platform in
    mesa25) selected=$(scripts/fetch-mesa-25.sh) name=mesa25-width-${LP_NATIVE_VECTOR_WIDTH:-256} ;;
    swiftshader) selected=$(scripts/fetch-swiftshader.sh) name=swiftshader ;;
    *) die "unknown platform \"$platform\": mesa25 or swiftshader" ;;
    esac
    start=$SECONDS verdict=ok
    (eval "$selected" && run_suite "$name") || verdict=FAILED failed=1
    rows+=("$(printf '%-18s %-6s %5d s  %s' "$name" $verdict $((SECONDS - start)) "$(closing_lines "$name" | paste -sd ' ')")")
done

echo
printf '%s\n' "${rows[@]}"
exit $failed
