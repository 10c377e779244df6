# cmake -DBUILD=… -DSCRATCH=… -DSOURCES=… -DTORCH_DIR=… -DPYTHON=… -P headers_test.cmake

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH} --component headers)

# Those that docs/cpp.md names, and no others.
file(GLOB_RECURSE installed RELATIVE ${SCRATCH}/include ${SCRATCH}/include/*)
file(STRINGS ${SOURCES}/docs/cpp.md table REGEX "^\\| `bimetal/[^|]*[.]h` \\|")
string(REGEX MATCHALL "bimetal/[a-z_/]+[.]h" named "${table}")
list(SORT installed)
list(SORT named)
list(REMOVE_DUPLICATES named)
if(NOT installed STREQUAL named)
  message(FATAL_ERROR "installed: ${installed}\nin docs/cpp.md: ${named}")
endif()

# Every member of them has a comment; what has none is a warning, which is an error (`make docs` sees to it where there is no Doxygen here).
find_program(DOXYGEN doxygen)
if(DOXYGEN)
  file(READ ${SOURCES}/docs/reference/Doxyfile settings)
  file(WRITE ${SCRATCH}/Doxyfile
    "${settings}\nINPUT = ${SCRATCH}/include\nSTRIP_FROM_PATH = ${SCRATCH}/include\nGENERATE_HTML = NO\nGENERATE_XML = YES\nOUTPUT_DIRECTORY = ${SCRATCH}/doxygen\n")
  execute_process(COMMAND ${DOXYGEN} ${SCRATCH}/Doxyfile WORKING_DIRECTORY ${SOURCES} COMMAND_ERROR_IS_FATAL ANY)
endif()
run(${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/check_headers.py ${SCRATCH}/include ${TORCH_DIR}/../../..)
file(REMOVE_RECURSE ${SCRATCH})
