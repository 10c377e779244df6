# `cmake --install`, find_package(Bimetal) and pkg-config: shared libraries, public headers, the program, the example job.

include(CMakePackageConfigHelpers)
set(BIMETAL_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Bimetal)

# bimetal_install_component(<name> <target>): what find_package(Bimetal COMPONENTS <name>) finds, as Bimetal::<name>.
function(bimetal_install_component name target)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(TARGETS ${target} EXPORT Bimetal_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT Bimetal_${name} NAMESPACE Bimetal:: DESTINATION ${BIMETAL_CMAKE_DIR})
endfunction()

set(headers bimetal/capi/bimetal_c.h)
if(WIN32)  # a DLL shows what is marked, and that is the C interface
  bimetal_install_component(core bimetal_capi)
else()
  include(SharedLibraries)
  bimetal_install_component(core bimetal_shared_core)
  list(APPEND headers bimetal/core.h)
endif()
if(BIMETAL_TORCH)
  bimetal_install_component(torch bimetal_shared_torch)
  list(APPEND headers bimetal/bimetal.h)
  # It finds the torch that it was built with; and who has built it (make build) can install all of this.
  set_target_properties(bimetal_whole PROPERTIES INSTALL_RPATH "${BIMETAL_TORCH_ROOT}/lib")
  add_dependencies(bimetal bimetal_shared_torch)
  install(TARGETS bimetal bimetal_whole RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/examples/fashion_mnist.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/bimetal)
endif()
install(CODE "
  set(BIMETAL_HEADERS \"${headers}\")
  set(BIMETAL_SOURCES \"${PROJECT_SOURCE_DIR}/src\")
  set(BIMETAL_BINARY \"${PROJECT_BINARY_DIR}\")
  set(BIMETAL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")" COMPONENT headers)
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake COMPONENT headers)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/BimetalConfig.cmake.in
  ${PROJECT_BINARY_DIR}/BimetalConfig.cmake INSTALL_DESTINATION ${BIMETAL_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/BimetalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/BimetalConfig.cmake ${PROJECT_BINARY_DIR}/BimetalConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/BimetalTorch.cmake DESTINATION ${BIMETAL_CMAKE_DIR})

# The core for whoever has no CMake: pkg-config --cflags --libs bimetal-core. The prefix is where the file lies.
file(RELATIVE_PATH prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(${CMAKE_CURRENT_LIST_DIR}/bimetal-core.pc.in ${PROJECT_BINARY_DIR}/bimetal-core.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/bimetal-core.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
