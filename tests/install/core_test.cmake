# cmake -DBUILD=… -DSCRATCH=… -DSOURCES=… -DCC=… -P core_test.cmake: the installed core, by CMake, by pkg-config and as sources.

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
# vcpkg's port, of which no more can be tested here, is of this version.
file(READ ${SOURCES}/packaging/vcpkg/bimetal/vcpkg.json port)
string(JSON version GET "${port}" version-semver)
file(STRINGS ${SOURCES}/CMakeLists.txt line REGEX "^project\\(bimetal VERSION ")
if(NOT line MATCHES "VERSION ${version} ")
  message(FATAL_ERROR "vcpkg.json says ${version}, but: ${line}")
endif()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)

# Whatever names are shown are ours.
file(GLOB folder ${SCRATCH}/prefix/lib*/pkgconfig)
get_filename_component(folder ${folder} DIRECTORY)
foreach(library bimetal_core bimetal)
  if(EXISTS ${folder}/lib${library}.so)
    run(nm -D --defined-only --format=posix ${folder}/lib${library}.so)
    string(REGEX REPLACE "[^\n]*(bimetal|BIMETAL)[^\n]*\n" "" others "${output}")
    if(others OR NOT output MATCHES "N7bimetal")
      message(FATAL_ERROR "lib${library} shows names that are not Bimetal's:\n${others}")
    endif()
  endif()
endforeach()

# The C interface's own example.
file(READ ${SOURCES}/docs/capi.md page)
string(REGEX MATCH "```c\n([^`]*)```" block "${page}")
file(WRITE ${SCRATCH}/sum.c "${CMAKE_MATCH_1}")
set(wanted "rank 0 of 1: 1 2 3\n")
find_program(PKG_CONFIG NAMES pkg-config pkgconf)
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} ${folder}/pkgconfig)
  run(${PKG_CONFIG} --cflags --libs bimetal-core)
  separate_arguments(words UNIX_COMMAND "${output}")
  run(${CC} -Wall -Wextra -Werror -DRANK=0 -DRANKS=1 ${SCRATCH}/sum.c ${words} -Wl,-rpath,${folder} -o ${SCRATCH}/sum)
  run(${SCRATCH}/sum)
  if(NOT output STREQUAL wanted)
    message(FATAL_ERROR "docs/capi.md's example says: ${output}")
  endif()
endif()

# find_package, in C and C++, where no torch is to be found.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/core -B ${SCRATCH}/core -G Ninja -DEXAMPLE_IN_C=${SCRATCH}/sum.c
    -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/core)
run(${SCRATCH}/core/example_in_c)
if(NOT output STREQUAL wanted)
  message(FATAL_ERROR "docs/capi.md's example says: ${output}")
endif()
run(${SCRATCH}/core/sum)
if(NOT output STREQUAL "1 2 3, 48 + 16, invalid_argument\n")
  message(FATAL_ERROR "the program in C++ says: ${output}")
endif()

# The sources as a part of another project.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/subproject -B ${SCRATCH}/subproject -G Ninja -DCMAKE_BUILD_TYPE=Release
    -DFETCHCONTENT_SOURCE_DIR_BIMETAL=${SOURCES})
run(${CMAKE_COMMAND} --build ${SCRATCH}/subproject --target shares)
run(${SCRATCH}/subproject/shares)
if(NOT output STREQUAL "32 + 32\n")
  message(FATAL_ERROR "the program on the sources says: ${output}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
