# How every target of the project is compiled, and bimetal_library, which declares a folder of src/bimetal; BimetalTest.cmake
# has the one for a folder of tests.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Programs of tests link libtorch and the whole of the tree: four times as fast by mold, where it is there.
find_program(BIMETAL_MOLD mold)
if(BIMETAL_MOLD AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=mold)
endif()

find_program(BIMETAL_CCACHE ccache)
if(BIMETAL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The precompiled header's time stamps and macros would otherwise make every look-up a miss, and so would the path of another clone.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${BIMETAL_CCACHE})
endif()

add_library(bimetal_flags INTERFACE)
target_compile_options(bimetal_flags INTERFACE
  $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-Wall -Wextra -Wpedantic -Wno-unused-parameter>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${BIMETAL_CCACHE}>>:-fpch-preprocess>)
if(BIMETAL_SANITIZE)
  # Asio's fences are beside the locks that order its memory; GCC warns of each that TSan skips them.
  target_compile_options(bimetal_flags INTERFACE
    -fsanitize=${BIMETAL_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
    $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  target_link_options(bimetal_flags INTERFACE -fsanitize=${BIMETAL_SANITIZE})
endif()

# What sees libtorch gives it its orders: the loops that take time are libtorch's, or the torch-free core's. So it
# is optimised lightly, which takes GCC a quarter less of the whole, and its memory is not collected on the way, which
# takes it another tenth. A precompiled header brings the optimisation that it was compiled with, hence one for all.
add_library(bimetal_glue INTERFACE)
target_compile_options(bimetal_glue INTERFACE
  $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang,AppleClang>>:-O1>
  $<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1000000>)

# bimetal_library(<name> SOURCES … [DEPENDS <bimetal folders>…] [LINK <other targets>…] [TORCH])
# Declares target bimetal_<name> (alias Bimetal::<name>) for one folder. TORCH: it includes libtorch.
function(bimetal_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;LINK;PRIVATE_LINK" ${ARGN})
  add_library(bimetal_${name} STATIC ${ARG_SOURCES})
  add_library(Bimetal::${name} ALIAS bimetal_${name})
  target_include_directories(bimetal_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(bimetal_${name} PUBLIC cxx_std_20)
  list(TRANSFORM ARG_DEPENDS PREPEND bimetal_)
  target_link_libraries(bimetal_${name} PUBLIC ${ARG_DEPENDS} ${ARG_LINK}
    PRIVATE bimetal_flags ${ARG_PRIVATE_LINK})
  if(ARG_TORCH)
    target_link_libraries(bimetal_${name} PUBLIC bimetal_torch)
    bimetal_use_torch_pch(bimetal_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY BIMETAL_LIBRARIES bimetal_${name})
endfunction()

# bimetal_seldom_run(<name>…): what happens once in a job, or once a second: optimised lightly, which takes GCC a third less, or
# by Clang, which makes the wheels' programs, for size.
function(bimetal_seldom_run)
  foreach(name IN LISTS ARGN)
    target_compile_options(bimetal_${name} PRIVATE
      $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-O1> $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:Clang,AppleClang>>:-Oz>)
  endforeach()
endfunction()

# bimetal_beside_library(<target>): a program that finds the shared library of the C interface in its own folder, wherever both are.
function(bimetal_beside_library target)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/capi
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>")
endfunction()

# bimetal_same_everywhere(<name>): every rank computes for itself what this folder decides (shares, deals, shards), and unlike machines
# must come to the same from the same figures, to the last bit. A fused multiply-add rounds once where two instructions
# round twice, and only some processors have it.
function(bimetal_same_everywhere name)
  target_compile_options(bimetal_${name} PRIVATE
    $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-ffp-contract=off>)
endfunction()

# One precompiled header for all targets that see libtorch: what is long to read is read once. What each compilation would pay for
# whether it uses it or not is left out: CLI11's objects take 3.5 s to compile, and nlohmann's JSON 1.5 s.
function(bimetal_use_torch_pch target)
  if(NOT TARGET bimetal_torch_pch)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cpp  # written only where it is not there yet
      CONTENT "// Carrier of the precompiled header.\n")
    add_library(bimetal_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
    target_link_libraries(bimetal_torch_pch PRIVATE
      bimetal_torch bimetal_flags bimetal_glue bimetal_fmt)
    if(BIMETAL_CCACHE AND CMAKE_HOST_UNIX)
      set_target_properties(bimetal_torch_pch PROPERTIES
        CXX_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/fresh_pch.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
    endif()
    target_precompile_headers(bimetal_torch_pch PRIVATE
      <torch/types.h> <torch/nn/module.h> <torch/optim/optimizer.h> <torch/utils.h> <fmt/format.h> <fmt/ranges.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM bimetal_torch_pch)
  # Each compilation instantiates for 3 s what libtorch's headers leave to its end: fewer, then.
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 20)
  target_link_libraries(${target} PRIVATE bimetal_glue)
  # Programs would be compiled with -fPIE, for which GCC refuses a header compiled with -fPIC.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fPIC>)
  endif()
endfunction()

# bimetal_kernels(<sources>…): loops over elements in a library that sees libtorch, which they don't: compiled by
# themselves, and optimised as the torch-free core is. Roots vectorise where nobody asks for errno or traps.
function(bimetal_kernels)
  set_source_files_properties(${ARGN} PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON
    COMPILE_OPTIONS "$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang,AppleClang>>:-O3;-fno-math-errno;-fno-trapping-math>")
endfunction()
