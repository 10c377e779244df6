# The two libraries of the installed package: libbimetal_core, which needs no torch and has the C interface in it, and libbimetal, the
# rest. They are linked from the objects of the static libraries, with which the program and the tests go on (docs/decisions/build.md).

set(BIMETAL_CORE_FOLDERS base net rendezvous comm membership balance parallel_schedule data_sampler launch_hosts launch_meet launch_local)

# bimetal_shared_library(<target> <file> OF <static libraries>… [LINK <what else they need>…])
function(bimetal_shared_library target file)
  cmake_parse_arguments(ARG "" "" "OF;LINK" ${ARGN})
  list(TRANSFORM ARG_OF REPLACE ".+" "$<TARGET_OBJECTS:\\0>")
  add_library(${target} SHARED ${ARG_OF})
  # Minor versions of 0.x differ in their interfaces, as BimetalConfigVersion.cmake has it.
  set(series ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${file} LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shared
    VERSION ${PROJECT_VERSION} SOVERSION ${series}
    INSTALL_RPATH "$<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>")
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_link_libraries(${target} PRIVATE ${ARG_LINK} Threads::Threads ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:bimetal_flags>)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(exports ${PROJECT_BINARY_DIR}/shared/exports.map)
    file(CONFIGURE OUTPUT ${exports} CONTENT [==[
# Shown are the C interface and what lies in namespace bimetal; what was linked in is hidden. The version of a name is that of the
# package, so that two of them in one process do not take each other's.
BIMETAL_C { global: bimetal_*; };
BIMETAL_@series@ {
  global: _ZN7bimetal*; _ZNK7bimetal*; _ZNO7bimetal*; _ZT[VTISHW]N7bimetal*; _ZTCN7bimetal*; _ZT[hv]*N7bimetal*; _ZGVN7bimetal*;
    _ZZN7bimetal*; _ZZNK7bimetal*; _ZGVZN7bimetal*; _ZGVZNK7bimetal*;
  local: *;
};
]==] @ONLY)
    target_link_options(${target} PRIVATE "LINKER:--version-script=${exports}" "LINKER:--no-undefined" $<$<CONFIG:Release>:-s>)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
  endif()
endfunction()

list(TRANSFORM BIMETAL_CORE_FOLDERS PREPEND bimetal_ OUTPUT_VARIABLE core)
bimetal_shared_library(bimetal_shared_core bimetal_core OF ${core} bimetal_capi LINK $<BUILD_INTERFACE:bimetal_sodium>)

if(BIMETAL_TORCH)
  get_property(rest GLOBAL PROPERTY BIMETAL_LIBRARIES)
  list(REMOVE_ITEM rest ${core})
  set(images "")
  if(BIMETAL_IMAGE_FILES)
    set(images $<BUILD_INTERFACE:JPEG::JPEG> $<BUILD_INTERFACE:PNG::PNG>)
  endif()
  if(BIMETAL_FMT_ONCE)  # the core's is hidden in it; by itself, since torch's headers have an fmt of their own
    add_library(bimetal_fmt_again OBJECT ${PROJECT_SOURCE_DIR}/src/bimetal/base/fmt.cpp)
    target_link_libraries(bimetal_fmt_again PRIVATE bimetal_fmt)
    list(APPEND rest bimetal_fmt_again)
  endif()
  bimetal_shared_library(bimetal_shared_torch bimetal OF ${rest}
    LINK $<BUILD_INTERFACE:bimetal_sodium> $<BUILD_INTERFACE:bimetal_torch> $<BUILD_INTERFACE:ZLIB::ZLIB>
      $<BUILD_INTERFACE:tomlplusplus::tomlplusplus> ${images})
  # Installed, the torch of the machine that uses the package takes its place (BimetalConfig.cmake.in).
  target_link_libraries(bimetal_shared_torch PUBLIC bimetal_shared_core INTERFACE $<INSTALL_INTERFACE:Bimetal::libtorch>)
  set_property(TARGET bimetal_shared_torch APPEND PROPERTY INSTALL_RPATH "${BIMETAL_TORCH_ROOT}/lib")
endif()
