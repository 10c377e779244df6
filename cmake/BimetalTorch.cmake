# libtorch as Bimetal uses it: headers, libraries, and the definitions on which its classes' layouts
# depend, from the folder of an installed torch. Not by find_package(Torch): where torch was built for
# CUDA, as pip's is on Linux, that asks for a toolkit of the same version, which few who train with it
# have and nothing here needs (but what joins NCCL: VendorNccl.cmake). Installed beside
# BimetalConfig.cmake, too.
#
# bimetal_import_torch(<target>) makes an INTERFACE target of the torch whose TorchConfig.cmake lies in
# Torch_DIR, or is found by CMAKE_PREFIX_PATH, and sets in the caller:
#   BIMETAL_TORCH_ROOT     the folder that holds its include/ and lib/
#   BIMETAL_TORCH_VERSION  X.Y.Z
#   BIMETAL_TORCH_VENDOR   cuda or hip, where it was built for one
#   BIMETAL_TORCH_PROBLEM  empty, or why there is no target, and what to do

set(BIMETAL_OLDEST_TORCH 2.11)  # all from there on have libstdc++'s new ABI

# bimetal_torch_library(<variable> <name>): its path, or nothing.
function(bimetal_torch_library variable name)
  find_library(path ${name} PATHS "${BIMETAL_TORCH_ROOT}/lib" NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH NO_CACHE)
  if(NOT path)
    set(path "")
  endif()
  set(${variable} "${path}" PARENT_SCOPE)
endfunction()

# bimetal_find_torch_root(): Torch_DIR, as find_package would keep it, BIMETAL_TORCH_ROOT and
# BIMETAL_TORCH_VERSION; empty if there is none.
macro(bimetal_find_torch_root)
  find_path(Torch_DIR TorchConfig.cmake NO_CMAKE_FIND_ROOT_PATH
    HINTS ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH PATH_SUFFIXES Torch share/cmake/Torch
    DOC "The folder of torch's TorchConfig.cmake")
  set(BIMETAL_TORCH_ROOT "")
  set(BIMETAL_TORCH_VERSION "")
  if(EXISTS "${Torch_DIR}/TorchConfigVersion.cmake")
    get_filename_component(BIMETAL_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
    file(STRINGS "${Torch_DIR}/TorchConfigVersion.cmake" line REGEX "PACKAGE_VERSION \"" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" BIMETAL_TORCH_VERSION "${line}")
  endif()
endmacro()

# bimetal_torch_definitions(<variable>): what torch was compiled with and its headers ask for.
function(bimetal_torch_definitions variable)
  set(found "")
  set(targets "${BIMETAL_TORCH_ROOT}/share/cmake/Caffe2/Caffe2Targets.cmake")
  if(EXISTS "${targets}")
    file(READ "${targets}" text)
    if(text MATCHES "\\(torch_cpu PROPERTIES[ \r\n]+INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
      set(found "${CMAKE_MATCH_1}")
    endif()
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# bimetal_link_torch(<target> <libtorch> [libraries of a vendor's devices]…). libtorch brings those along
# for torch itself: it is kept, although nothing here names a symbol of it. They are not, unless a symbol
# is named, so that what was built with them runs on a torch without them, too. libstdc++ comes before them
# all: pip's torch for CUDA shows names of std::filesystem that were linked into it, and who found these
# first would crash in them (torch 2.11's remove_all() calls a function that is not there).
function(bimetal_link_torch target libtorch)
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_libraries(${target} INTERFACE "${libtorch}" ${ARGN})
    return()
  endif()
  target_link_libraries(${target} INTERFACE "-Wl,--push-state,--no-as-needed,\"${libtorch}\",--pop-state")
  target_link_options(${target} INTERFACE "LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state")  # options come first
  if(ARGN)
    list(JOIN ARGN "\",\"" vendors)
    target_link_libraries(${target} INTERFACE "-Wl,--push-state,--as-needed,\"${vendors}\",--pop-state")
    # What these need in turn, torch finds at run time.
    target_link_options(${target} INTERFACE "LINKER:--allow-shlib-undefined")
  endif()
endfunction()

function(bimetal_import_torch target)
  bimetal_find_torch_root()
  foreach(library torch torch_cpu c10 torch_cuda c10_cuda torch_hip c10_hip)
    bimetal_torch_library(lib${library} ${library})
  endforeach()
  set(BIMETAL_TORCH_PROBLEM "")
  set(BIMETAL_TORCH_VENDOR "")
  if(NOT BIMETAL_TORCH_VERSION)
    string(CONCAT BIMETAL_TORCH_PROBLEM "no torch was found: install it (pip install torch), or set Torch_DIR "
      "to the folder of its TorchConfig.cmake")
  elseif(BIMETAL_TORCH_VERSION VERSION_LESS BIMETAL_OLDEST_TORCH)
    string(CONCAT BIMETAL_TORCH_PROBLEM "torch ${BIMETAL_TORCH_VERSION} (${BIMETAL_TORCH_ROOT}) is older than "
      "${BIMETAL_OLDEST_TORCH}, which Bimetal's C++ parts need: upgrade it, or install Bimetal's wheel, which fits any "
      "torch from 2.4 on (docs/install.md)")
  elseif(NOT libtorch OR NOT libtorch_cpu OR NOT libc10)
    string(CONCAT BIMETAL_TORCH_PROBLEM "${BIMETAL_TORCH_ROOT}/lib lacks libraries of torch "
      "${BIMETAL_TORCH_VERSION}: install it anew")
  else()
    if(libtorch_cuda)
      set(BIMETAL_TORCH_VENDOR cuda)
    elseif(libtorch_hip)
      set(BIMETAL_TORCH_VENDOR hip)
    endif()
    bimetal_torch_definitions(definitions)
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} INTERFACE
      "${BIMETAL_TORCH_ROOT}/include" "${BIMETAL_TORCH_ROOT}/include/torch/csrc/api/include")
    target_compile_definitions(${target} INTERFACE ${definitions})
    target_compile_features(${target} INTERFACE cxx_std_20)
    bimetal_link_torch(${target} "${libtorch}" ${libtorch_cuda} ${libc10_cuda} ${libtorch_hip} ${libc10_hip})
    target_link_libraries(${target} INTERFACE "${libtorch_cpu}" "${libc10}")
  endif()
  foreach(told ROOT VERSION VENDOR PROBLEM)
    set(BIMETAL_TORCH_${told} "${BIMETAL_TORCH_${told}}" PARENT_SCOPE)
  endforeach()
endfunction()
