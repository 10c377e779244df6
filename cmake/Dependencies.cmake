# Everything that Bimetal builds on. The system's package is taken where there is one (on Debian:
# see scripts/setup.sh); otherwise FetchContent brings the pinned version below.

include(FetchContent)
set(FETCHCONTENT_QUIET OFF)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)  # where this is a part of another project, that one links them, too
find_package(Threads REQUIRED)

# fmt, header-only: nothing to link, nothing to cross-build. Of Debian's version what is no template is compiled once
# (src/bimetal/base/fmt.cpp), not in each source that formats.
find_package(fmt QUIET)
if(NOT fmt_FOUND)
  FetchContent_Declare(fmt GIT_REPOSITORY https://github.com/fmtlib/fmt.git GIT_TAG 10.2.1 GIT_SHALLOW ON)
  FetchContent_MakeAvailable(fmt)
endif()
add_library(bimetal_fmt INTERFACE)
if(fmt_VERSION MATCHES "^9\\.")
  set(BIMETAL_FMT_ONCE ON)
  target_include_directories(bimetal_fmt SYSTEM INTERFACE
    $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  set(BIMETAL_FMT_ONCE OFF)
  target_link_libraries(bimetal_fmt INTERFACE fmt::fmt-header-only)
endif()

# Asio without Boost. It has no CMake package of its own.
find_path(BIMETAL_ASIO_INCLUDE asio.hpp)
if(NOT BIMETAL_ASIO_INCLUDE)
  FetchContent_Declare(asio GIT_REPOSITORY https://github.com/chriskohlhoff/asio.git GIT_TAG asio-1-30-2 GIT_SHALLOW ON)
  FetchContent_MakeAvailable(asio)
  set(BIMETAL_ASIO_INCLUDE ${asio_SOURCE_DIR}/asio/include CACHE PATH "" FORCE)
endif()
add_library(bimetal_asio INTERFACE)
target_include_directories(bimetal_asio SYSTEM INTERFACE ${BIMETAL_ASIO_INCLUDE})
# Debian's Asio takes Clang's coroutines for the experiment that they once were. Whether it has
# aligned_alloc it decides by what was included before it, so differently in two sources of one
# program, and memory would be taken in one way and given back in the other.
target_compile_definitions(bimetal_asio INTERFACE
  ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_DISABLE_STD_ALIGNED_ALLOC
  $<$<CXX_COMPILER_ID:Clang,AppleClang>:ASIO_HAS_CO_AWAIT=1>
  $<$<PLATFORM_ID:Darwin>:ASIO_DISABLE_VISIBILITY>)  # else its names are shown whatever the library hides
target_link_libraries(bimetal_asio INTERFACE Threads::Threads)
if(WIN32)
  # Windows 10 and later; without the macros min and max, and without headers that define more of them.
  # Whether there are threads Asio would guess from a macro of mingw-w64's headers, hence differently
  # from source to source, and with it the layout of its classes.
  target_compile_definitions(bimetal_asio INTERFACE
    _WIN32_WINNT=0x0a00 NOMINMAX WIN32_LEAN_AND_MEAN ASIO_HAS_THREADS=1)
  target_link_libraries(bimetal_asio INTERFACE ws2_32 mswsock)
endif()

# libsodium: random numbers, HMAC, SipHash, wiping of secrets. Chosen over OpenSSL because the core
# is cross-compiled for macOS and Windows, where one small library is simple to build.
find_path(BIMETAL_SODIUM_INCLUDE sodium.h)
find_library(BIMETAL_SODIUM_LIBRARY NAMES sodium libsodium)
if(NOT BIMETAL_SODIUM_INCLUDE OR NOT BIMETAL_SODIUM_LIBRARY)
  FetchContent_Declare(sodium GIT_REPOSITORY https://github.com/robinlinden/libsodium-cmake.git
    GIT_TAG e5b985ad0dd235d8c4307ea3a385b45e76c74c6a)
  FetchContent_MakeAvailable(sodium)
  set(BIMETAL_SODIUM_LIBRARY sodium)
endif()
add_library(bimetal_sodium INTERFACE)
target_link_libraries(bimetal_sodium INTERFACE ${BIMETAL_SODIUM_LIBRARY})
if(WIN32)
  target_compile_definitions(bimetal_sodium INTERFACE SODIUM_STATIC)
  target_link_libraries(bimetal_sodium INTERFACE bcrypt advapi32)
endif()
if(BIMETAL_SODIUM_INCLUDE)
  target_include_directories(bimetal_sodium SYSTEM INTERFACE ${BIMETAL_SODIUM_INCLUDE})
endif()

if(BIMETAL_TORCH)
  include(FindTorchWheel)
  include(BimetalTorch)
  bimetal_import_torch(bimetal_torch)
  if(BIMETAL_TORCH_PROBLEM)
    message(FATAL_ERROR "${BIMETAL_TORCH_PROBLEM}")
  endif()
  set_property(TARGET bimetal_torch PROPERTY IMPORTED_GLOBAL TRUE)
  message(STATUS "torch ${BIMETAL_TORCH_VERSION}: ${BIMETAL_TORCH_ROOT}")
  # Among torch's headers is an fmt of its own, of another version in each torch, which goes before ours where torch's are read.
  target_compile_definitions(bimetal_torch INTERFACE FMT_HEADER_ONLY=1)
  find_package(ZLIB REQUIRED)
  # Folders of JPEG and PNG files; without these libraries, all but that.
  if(BIMETAL_IMAGE_FILES)
    find_package(JPEG)
    find_package(PNG)
    if(NOT JPEG_FOUND OR NOT PNG_FOUND)
      message(STATUS "libjpeg or libpng is missing: folders of JPEG and PNG files will not be read")
      set(BIMETAL_IMAGE_FILES OFF)
    endif()
  endif()
  find_package(tomlplusplus QUIET)
  if(NOT tomlplusplus_FOUND)
    FetchContent_Declare(tomlplusplus GIT_REPOSITORY https://github.com/marzer/tomlplusplus.git GIT_TAG v3.4.0 GIT_SHALLOW ON)
    FetchContent_MakeAvailable(tomlplusplus)
  endif()
endif()

if(BIMETAL_TORCH OR BIMETAL_FABRIC_BENCH OR BIMETAL_LITE)
  find_package(CLI11 QUIET)
  if(NOT CLI11_FOUND)
    FetchContent_Declare(cli11 GIT_REPOSITORY https://github.com/CLIUtils/CLI11.git GIT_TAG v2.4.2 GIT_SHALLOW ON)
    FetchContent_MakeAvailable(cli11)
  endif()
endif()

find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  FetchContent_Declare(nlohmann_json GIT_REPOSITORY https://github.com/nlohmann/json.git GIT_TAG v3.11.3 GIT_SHALLOW ON)
  FetchContent_MakeAvailable(nlohmann_json)
endif()

if(BIMETAL_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    FetchContent_Declare(googletest GIT_REPOSITORY https://github.com/google/googletest.git GIT_TAG v1.14.0 GIT_SHALLOW ON)
    FetchContent_MakeAvailable(googletest)
    add_library(GTest::gmock ALIAS gmock)
  endif()
endif()
