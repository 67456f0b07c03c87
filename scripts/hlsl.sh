#!/usr/bin/env bash
# Compiles a folder of .hlsl files with the compilers DX12 uses, DXC and FXC, under wine:
#   wgpu-attention shader --all target/shaders-hlsl --to hlsl && scripts/hlsl.sh target/shaders-hlsl
# FXC, the one every Windows has, knows no wave operations and no 16- or 64-bit types: files with any go to DXC alone.
dir=$(realpath -- "${1:?usage: hlsl.sh FOLDER}")
source "$(dirname "$0")/common.sh"
compgen -G "$dir/*.hlsl" >/dev/null || die "no .hlsl files in $dir"

need_packages wine64 gcc-mingw-w64-x86-64-posix
fetch_webgpu
work=$PWD/target/hlsl
mkdir -p "$work"
if [ scripts/hlsl_compile.c -nt "$work/hlsl_compile.exe" ]; then
    cp target/npm/node_modules/webgpu/dist/win32-x64/{dxcompiler,d3dcompiler_47}.dll "$work/"
    x86_64-w64-mingw32-gcc -O2 -Wall -Wextra -Werror scripts/hlsl_compile.c -o "$work/hlsl_compile.exe"
fi
# Microsoft's own FXC rather than wine's, and nothing of wine's that would ask for more downloads.
export WINEPREFIX=$work/wine WINEDEBUG=-all WINEDLLOVERRIDES='d3dcompiler_47=n;mscoree,mshtml='
wine=/usr/lib/wine/wine64
[ -d "$WINEPREFIX" ] || "$wine" wineboot --init >/dev/null 2>&1

cd "$dir"
fxc_refuses='\bWave[A-Z]\w*\(|\b(half|(float|u?int)(16|64)_t)'
{
    printf 'dxc %s\n' *.hlsl
    grep -LE "$fxc_refuses" -- *.hlsl | sed 's/^/fxc /'
} >"$work/jobs"
# One process a core, because wine takes seconds to start; jobs are dealt in turn.
n=$(nproc)
rm -f "$work"/jobs.* "$work"/results.*
split -n "r/$n" -d "$work/jobs" "$work/jobs."
for jobs in "$work"/jobs.[0-9]*; do
    # A crash shows as jobs without a result.
    "$wine" "$work/hlsl_compile.exe" "Z:$jobs" >"${jobs/jobs./results.}" &
done
wait

# Jobs first, results over them: what has no result has failed.
cat "$work"/results.* | tr -d '\r' | awk -F '\t' -v OFS='\t' '
    NR == FNR {
        compiler = substr($0, 1, 3); file = substr($0, 5)
        if (compiler == "dxc") files[++n] = file
        state[compiler, file] = "no result: the compiler crashed"
        next
    }
    { state[$1, $2] = $3; ms[$1, $2] = $4; total[$1] += $4 }
    function cell(compiler, file) {
        if (!((compiler, file) in state)) return "-"
        jobs[compiler]++
        if (state[compiler, file] == "ok") { ok[compiler]++; return ms[compiler, file] " ms" }
        errors[++n_errors] = compiler " " file ": " state[compiler, file]
        return "FAILED"
    }
    END {
        format = "%-60s %10s %10s\n"
        printf format, "file", "dxc", "fxc"
        for (i = 1; i <= n; i++) printf format, files[i], cell("dxc", files[i]), cell("fxc", files[i])
        printf format, "ok", ok["dxc"] + 0 " of " jobs["dxc"], ok["fxc"] + 0 " of " jobs["fxc"] + 0
        printf format, "total", total["dxc"] + 0 " ms", total["fxc"] + 0 " ms"
        for (i = 1; i <= n_errors; i++) print errors[i]
        exit n_errors > 0
    }' "$work/jobs" -
