#!/usr/bin/env bash
# Unpacks SwiftShader, the weakest Vulkan device we run on, from Debian's Chromium into target/drivers/swiftshader.
# Prints the environment that selects it: eval "$(scripts/fetch-swiftshader.sh)".
source "$(dirname "$0")/common.sh"

dir=$PWD/target/drivers/swiftshader
if ! grep -qs "$dir/" "$dir/icd.json"; then # absent, or the repository has moved
    rm -rf "$dir"
    fetch_packages "$dir" bookworm chromium-common
    # Two files of a large package: stream them out rather than unpack everything.
    dpkg-deb --fsys-tarfile "$dir"/debs/chromium-common_*.deb |
        tar -x -C "$dir" --strip-components=4 --wildcards './usr/lib/chromium/*vk_swiftshader*'
    absolute_icd "$dir/vk_swiftshader_icd.json" "$dir/icd.json" "$dir/libvk_swiftshader.so"
    rm -rf "$dir/debs"
fi
printf 'export VK_DRIVER_FILES=%q\n' "$dir/icd.json"
