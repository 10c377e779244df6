# CTest looks for the cases of a GoogleTest program itself, at its first start after that was built, and writes the list of
# them a piece at a time. Two runs of CTest that start at once would write into one list, which then has cases twice: they
# take turns.
include(GoogleTest)

set(BIMETAL_DISCOVERY_LOCK "${CMAKE_BINARY_DIR}/CMakeFiles/discovery_lock")
# A run that has no turn after this long goes on without: another may be stopped.
file(CONFIGURE OUTPUT "${BIMETAL_DISCOVERY_LOCK}.cmake" @ONLY
  CONTENT "file(LOCK \"@BIMETAL_DISCOVERY_LOCK@\" GUARD PROCESS TIMEOUT 300 RESULT_VARIABLE ignored)\n")
file(CONFIGURE OUTPUT "${BIMETAL_DISCOVERY_LOCK}_release.cmake" @ONLY
  CONTENT "file(LOCK \"@BIMETAL_DISCOVERY_LOCK@\" RELEASE RESULT_VARIABLE ignored)\n")

# bimetal_discover_tests(<name> [options of gtest_discover_tests]…)
function(bimetal_discover_tests name)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${BIMETAL_DISCOVERY_LOCK}.cmake")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST ${ARGN})
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${BIMETAL_DISCOVERY_LOCK}_release.cmake")
endfunction()
