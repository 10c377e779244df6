# macOS on Apple silicon, cross-compiled with Zig.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_USER_MAKE_RULES_OVERRIDE ${CMAKE_CURRENT_LIST_DIR}/macos-rpath.cmake)
if(NOT BIMETAL_ZIG_TARGET)
  set(BIMETAL_ZIG_TARGET aarch64-macos.13.0)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
