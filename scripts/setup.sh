#!/usr/bin/env bash
# Makes sure that some Vulkan driver is there, so that the tests run on any Linux machine, with a GPU or without.
# Elsewhere the system brings its own graphics API and there is nothing to do.
source "$(dirname "$0")/common.sh"
shopt -s nullglob

[ "$(uname -s)" = Linux ] || exit 0

drivers=({/usr/share,/usr/local/share,/etc,"${XDG_DATA_HOME:-${HOME:-/root}/.local/share}"}/vulkan/icd.d/*.json)
loaders=(/{usr/,}lib{,64}/{,*-linux-gnu/}libvulkan.so.1 /usr/local/lib/libvulkan.so.1)
driver=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-${drivers[0]:-}}}
if [ -n "$driver" ] && [ ${#loaders[@]} -gt 0 ]; then exit 0; fi

command -v apt-get >/dev/null || die "no Vulkan driver: install a Vulkan loader and driver with the system's package" \
    "manager (Fedora: vulkan-loader mesa-vulkan-drivers; Arch: vulkan-icd-loader vulkan-swrast)"
need_packages mesa-vulkan-drivers libvulkan1
