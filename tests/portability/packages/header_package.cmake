# header_package(<target> <header>): a library of headers alone, found in the folder of libraries for
# the other system, as the target that the project links. Debian's own CMake files would name this
# machine's folders.
function(header_package target header)
  string(MAKE_C_IDENTIFIER ${target}_INCLUDE variable)
  find_path(${variable} ${header} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${${variable}})
endfunction()
