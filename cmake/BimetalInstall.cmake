# `cmake --install` and find_package(Bimetal): static libraries, headers, the program, the example job.

include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY BIMETAL_LIBRARIES)

install(TARGETS ${libraries} bimetal_fmt bimetal_asio bimetal_sodium EXPORT BimetalTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT BimetalTargets NAMESPACE Bimetal:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Bimetal)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/bimetal DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE PATTERN "fabric_bench" EXCLUDE)
if(TARGET bimetal)
  install(TARGETS bimetal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/examples/fashion_mnist.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/bimetal)

set(BIMETAL_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Bimetal)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/BimetalConfig.cmake.in
  ${PROJECT_BINARY_DIR}/BimetalConfig.cmake INSTALL_DESTINATION ${BIMETAL_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/BimetalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/BimetalConfig.cmake ${PROJECT_BINARY_DIR}/BimetalConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/BimetalTorch.cmake DESTINATION ${BIMETAL_CMAKE_DIR})
