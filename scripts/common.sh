# Shared by the scripts beside it: source it, do not run it. Leaves the caller in the repository root.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Installs Debian packages where that needs no password, else names the command that would.
need_packages() {
    local missing=() pkg sudo=()
    for pkg; do
        dpkg-query -W -f '${db:Status-Status}' "$pkg" 2>/dev/null | grep -qx installed || missing+=("$pkg")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            die "missing packages: run \`sudo apt-get install -y --no-install-recommends ${missing[*]}\`"
        fi
        sudo=(sudo -n)
    fi
    printf 'installing %s\n' "${missing[*]}" >&2
    # A third-party source that does not answer must not stop us: the install is what has to work.
    "${sudo[@]}" apt-get -q -o DPkg::Lock::Timeout=120 update >&2 || true
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 \
        install -y --no-install-recommends "${missing[@]}" >&2
}

# fetch_packages DIR SUITES PACKAGE..: downloads and unpacks Debian packages into DIR without installing them.
# Has its own sources and lists, so the system's stay as they are.
fetch_packages() {
    local debs=$1/debs suites=$2 mirror suite apt
    shift 2
    command -v apt-get >/dev/null || die "unpacks Debian packages: needs apt-get and dpkg"
    # shellcheck disable=SC2016 # apt's own placeholders
    mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')}
    [ -n "$mirror" ] || die "no Debian mirror among the apt sources: set DEBIAN_MIRROR to one"
    mkdir -p "$debs"/{lists,cache/archives}/partial
    for suite in $suites; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
    done >"$debs/sources.list"
    : >"$debs/status"
    apt=(apt-get -q -o "Dir::Etc::sourcelist=$debs/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$debs/lists" -o "Dir::State::status=$debs/status" -o "Dir::Cache=$debs/cache"
        -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
    "${apt[@]}" update >&2
    (cd "$debs" && "${apt[@]}" download "$@" >&2)
}

# absolute_icd FROM TO LIBRARY: a driver manifest that works from any folder and whatever the library path.
absolute_icd() {
    sed -E "s#(\"library_path\" *: *\")[^\"]*\"#\1$3\"#" "$1" >"$2"
}

# True where Vulkan can only be lavapipe: its subgroup width is then ours to choose.
uses_lavapipe() {
    local nodes=(/dev/dri/renderD* /dev/nvidiactl /dev/dxg) node
    case ${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}${WGPU_ADAPTER_NAME:-} in
    *lvp* | *llvmpipe*) return 0 ;;
    ?*) return 1 ;;
    esac
    [ "$(uname -s)" = Linux ] || return 1
    for node in "${nodes[@]}"; do
        [ ! -e "$node" ] || return 1
    done
}

# run_suite NAME [FILTER..]: the whole suite, its output also in target/logs/NAME.log, and shaders compiled by
# Mesa kept in a folder of NAME's own: the key of Mesa's disk cache ignores the driver's vector width.
run_suite() {
    local name=$1 runner=(cargo test)
    shift
    if command -v cargo-nextest >/dev/null; then
        runner=(cargo nextest run)
    elif [[ " $* " != *" --test "* ]]; then
        runner+=(--lib --bins --tests --examples) # not the doc tests, as with nextest
    fi
    mkdir -p target/logs "target/shader-cache/$name"
    MESA_SHADER_CACHE_DIR=$PWD/target/shader-cache/$name "${runner[@]}" "$@" 2>&1 | tee "target/logs/$name.log"
}

# with_ignored: the runner's words for "those marked as slow, too".
with_ignored() {
    if command -v cargo-nextest >/dev/null; then echo --run-ignored all; else echo -- --include-ignored; fi
}

# closing_lines NAME: what the runner said at the end of a suite.
closing_lines() {
    sed 's/\x1b\[[0-9;]*m//g' "target/logs/$1.log" | grep -oE '^ *Summary \[.*|^test result:.*' |
        grep -v ' 0 passed; 0 failed' | sed -E 's/^ *//; s/; 0 ignored; 0 measured; 0 filtered out//' || true
}

# The npm package with Tint (Dawn for node) and Microsoft's shader compilers, in target/npm.
fetch_webgpu() {
    command -v npm >/dev/null || need_packages nodejs npm
    mkdir -p target/npm
    if ! cmp -s scripts/package.json target/npm/package.json || [ ! -e target/npm/node_modules/webgpu ]; then
        cp scripts/package.json target/npm/
        npm install --prefix target/npm --ignore-scripts --no-package-lock --no-audit --no-fund --silent >&2
    fi
}
