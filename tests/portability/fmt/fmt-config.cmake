# fmt's headers in the folder of cross-built libraries, as the target that the project links.
add_library(fmt::fmt-header-only INTERFACE IMPORTED)
find_path(fmt_INCLUDE fmt/format.h REQUIRED)
set_target_properties(fmt::fmt-header-only PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES ${fmt_INCLUDE} INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
