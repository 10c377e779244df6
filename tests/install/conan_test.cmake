# cmake -DSCRATCH=… -DSOURCES=… -P conan_test.cmake: the recipe makes a package, and its program runs. With the system's libraries, so
# that nothing is downloaded.

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
find_program(CONAN conan)
if(NOT CONAN)
  message("skipped: there is no conan (pip install conan)")
  return()
endif()
file(REMOVE_RECURSE ${SCRATCH})
set(ENV{CONAN_HOME} ${SCRATCH})
run(${CONAN} create ${SOURCES}/packaging/conan --profile:all=${SOURCES}/packaging/conan/system.profile --no-remote)
if(NOT output MATCHES "1 2 3, 48 \\+ 16, invalid_argument")
  message(FATAL_ERROR "its program says: ${output}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
