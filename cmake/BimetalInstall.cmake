# `cmake --install` and find_package(Bimetal): static libraries, public headers, the C library, the program, the example job.

include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY BIMETAL_LIBRARIES)

install(TARGETS ${libraries} bimetal_fmt bimetal_asio bimetal_sodium EXPORT BimetalTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT BimetalTargets NAMESPACE Bimetal:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Bimetal)
install(TARGETS bimetal_capi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(BIMETAL_TORCH)
  install(CODE "
    set(BIMETAL_SOURCES \"${PROJECT_SOURCE_DIR}/src\")
    set(BIMETAL_BINARY \"${PROJECT_BINARY_DIR}\")
    set(BIMETAL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")")
  install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake)
else()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/bimetal DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE PATTERN "fabric_bench" EXCLUDE)
endif()
if(TARGET bimetal)
  # It finds the torch that it was built with; and who has built it (make build) can install all of this.
  set_target_properties(bimetal PROPERTIES INSTALL_RPATH "${BIMETAL_TORCH_ROOT}/lib")
  add_dependencies(bimetal ${libraries} bimetal_capi)
  install(TARGETS bimetal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/examples/fashion_mnist.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/bimetal)

set(BIMETAL_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Bimetal)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/BimetalConfig.cmake.in
  ${PROJECT_BINARY_DIR}/BimetalConfig.cmake INSTALL_DESTINATION ${BIMETAL_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/BimetalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/BimetalConfig.cmake ${PROJECT_BINARY_DIR}/BimetalConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/BimetalTorch.cmake DESTINATION ${BIMETAL_CMAKE_DIR})
