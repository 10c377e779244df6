# Bimetal's core (docs/cpp.md): vcpkg install bimetal --overlay-ports=packaging/vcpkg. The port lies in the sources that it builds.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DBIMETAL_TORCH=OFF -DBIMETAL_PYTHON=OFF -DBIMETAL_TESTS=OFF -DBIMETAL_FABRIC_PEER=OFF -DBIMETAL_FABRIC_BENCH=OFF -DBIMETAL_LITE=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME Bimetal CONFIG_PATH lib/cmake/Bimetal)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
