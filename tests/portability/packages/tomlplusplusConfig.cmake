include(${CMAKE_CURRENT_LIST_DIR}/header_package.cmake)
header_package(tomlplusplus::tomlplusplus toml++/toml.h)
