# Zig's Clang as a cross compiler: one download (the PyPI package `ziglang`) that carries the headers and
# C libraries of Windows and macOS. Included by the zig-*.cmake files, which say the target.
#
# CMake wants a program for each tool where Zig has one with subcommands; hence small scripts, written
# into the build folder. Zig is looked for at ZIG (environment), on PATH, and in .venv.

find_program(BIMETAL_ZIG zig HINTS ENV ZIG
  PATHS ${CMAKE_CURRENT_LIST_DIR}/../../build-portability/zig/ziglang)
if(NOT BIMETAL_ZIG)
  message(FATAL_ERROR "zig is not to be found; run `make portability` once, or `pip install ziglang` and "
                      "set ZIG to the folder of its program zig")
endif()

# zig_tool(<variable> <subcommand and options>): a script that runs it.
function(zig_tool variable)
  string(REPLACE ";" " " command "${ARGN}")
  list(GET ARGN 0 name)
  set(script "${CMAKE_BINARY_DIR}/toolchain/zig-${name}")
  file(CONFIGURE OUTPUT "${script}" CONTENT "#!/bin/sh\nexec '${BIMETAL_ZIG}' ${command} \"$@\"\n" @ONLY)
  file(CHMOD "${script}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  set(${variable} "${script}" PARENT_SCOPE)
endfunction()

# Zig builds C and C++ libraries of its own for each kind of program that it links: optimised or not, stripped or not.
# Said here, there is one kind, also for the programs by which CMake finds out what the compiler is.
zig_tool(CMAKE_C_COMPILER cc -target ${BIMETAL_ZIG_TARGET} -O2 -s)
zig_tool(CMAKE_CXX_COMPILER c++ -target ${BIMETAL_ZIG_TARGET} -O2 -s)
zig_tool(CMAKE_AR ar)
zig_tool(CMAKE_RANLIB ranlib)

# Headers and libraries come from the folder of cross-built ones alone, never from this machine's own.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES BIMETAL_ZIG)
