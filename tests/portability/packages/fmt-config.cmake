include(${CMAKE_CURRENT_LIST_DIR}/header_package.cmake)
header_package(fmt::fmt-header-only fmt/format.h)
target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY=1)
