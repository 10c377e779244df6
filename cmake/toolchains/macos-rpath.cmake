# What CMake's own file for macOS sets only where it runs on macOS itself, and asks for as soon as a
# library is known by @rpath. It forgets what toolchain files say, hence this file of its own.
set(CMAKE_SHARED_LIBRARY_RUNTIME_C_FLAG "-Wl,-rpath,")
