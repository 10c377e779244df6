# macOS 11 or later on Apple silicon, cross-compiled with Zig: for what needs no libtorch.
set(BIMETAL_ZIG_TARGET aarch64-macos.11.0)
include(${CMAKE_CURRENT_LIST_DIR}/zig-aarch64-macos.cmake)
