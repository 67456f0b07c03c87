#!/usr/bin/env bash
# Unpacks the lavapipe of Mesa 25.0 (Debian 12 backports) beside the installed driver, into target/drivers/mesa25.
# Prints the environment that selects it: eval "$(scripts/fetch-mesa-25.sh)".
source "$(dirname "$0")/common.sh"

dir=$PWD/target/drivers/mesa25
if ! grep -qs "$dir/" "$dir/lvp_icd.json"; then # absent, or the repository has moved
    need_packages mesa-vulkan-drivers libvulkan1 # bring the libraries that both versions use
    suites=bookworm-backports
    packages=({mesa-vulkan-drivers,libdrm2,libdrm-amdgpu1}/bookworm-backports)
    # The driver is built against the LLVM of Debian 12, which other releases lack.
    if ! PATH=$PATH:/sbin ldconfig -p | grep -q 'libLLVM-15\.so\.1 '; then
        suites+=" bookworm"
        packages+=({libllvm15,libz3-4}/bookworm)
    fi
    rm -rf "$dir"
    fetch_packages "$dir" "$suites" "${packages[@]}"
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
    mkdir "$dir/lib"
    find "$dir/root" \( -name 'libvulkan_lvp.so*' -o -name 'libdrm*.so*' -o -name 'libLLVM*.so*' -o -name 'libz3.so*' \) \
        -exec cp -a {} "$dir/lib/" \;
    lacking=$(LD_LIBRARY_PATH=$dir/lib ldd "$dir/lib/libvulkan_lvp.so" | awk '/not found/ { print $1 }')
    [ -z "$lacking" ] || die "the driver needs libraries this system lacks: $lacking"
    # Written last: its presence says that the rest is complete.
    absolute_icd "$dir"/root/usr/share/vulkan/icd.d/lvp_icd*.json "$dir/lvp_icd.json" "$dir/lib/libvulkan_lvp.so"
    rm -rf "$dir/root" "$dir/debs"
fi
printf 'export VK_DRIVER_FILES=%q LD_LIBRARY_PATH=%q\n' "$dir/lvp_icd.json" "$dir/lib"
