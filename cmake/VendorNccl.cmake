# Whether what joins NCCL or RCCL (c10d/vendor_nccl.cpp) can be compiled. torch's headers for that include
# those of CUDA and NCCL, which a toolkit has; of the packages that pip brings along with torch some have
# them, too. Without them no islands are formed (docs/islands.md), and nothing else is missing.
#
# bimetal_find_vendor_nccl() sets in the caller:
#   BIMETAL_VENDOR_NCCL              whether it compiles
#   BIMETAL_VENDOR_NCCL_INCLUDES     the folders of headers that it needs beside torch's
#   BIMETAL_VENDOR_NCCL_DEFINITIONS  as of a compilation's options
# bimetal_find_vendor_graphs() sets the same with GRAPHS, of device/graph_cuda.cpp, which needs no NCCL.

include(CheckCXXSourceCompiles)

# bimetal_cuda_includes(<variable>): of the packages beside torch, and of a toolkit of the same major
# version, with which CUDA's structures change.
function(bimetal_cuda_includes variable)
  file(GLOB includes LIST_DIRECTORIES true "${BIMETAL_TORCH_ROOT}/../nvidia/*/include")
  set(cuda "")
  if(EXISTS "${BIMETAL_TORCH_ROOT}/version.py")
    file(STRINGS "${BIMETAL_TORCH_ROOT}/version.py" line REGEX "^cuda.*= '[0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "'[0-9]+" cuda "${line}")
    string(REPLACE "'" "" cuda "${cuda}")
  endif()
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND (NOT cuda OR CUDAToolkit_VERSION_MAJOR EQUAL cuda))
    list(APPEND includes ${CUDAToolkit_INCLUDE_DIRS})
  endif()
  set(${variable} "${includes}" PARENT_SCOPE)
endfunction()

# bimetal_vendor_compiles(<result> <includes> <definitions> <source>): whether it does with torch's headers
# and those of its vendor, and how.
function(bimetal_vendor_compiles result includes_variable definitions_variable source)
  set(includes "")
  set(definitions "")
  if(BIMETAL_TORCH_VENDOR STREQUAL cuda)
    bimetal_cuda_includes(includes)
  elseif(BIMETAL_TORCH_VENDOR STREQUAL hip)
    find_path(BIMETAL_HIP_INCLUDE hip/hip_runtime.h HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES include)
    set(includes ${BIMETAL_HIP_INCLUDE})
    set(definitions USE_ROCM __HIP_PLATFORM_AMD__=1)
  endif()
  if(BIMETAL_TORCH_VENDOR)
    set(CMAKE_REQUIRED_LIBRARIES bimetal_torch)
    set(CMAKE_REQUIRED_INCLUDES ${includes})
    list(TRANSFORM definitions PREPEND -D OUTPUT_VARIABLE CMAKE_REQUIRED_DEFINITIONS)
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    set(CMAKE_CXX_STANDARD 20)
    check_cxx_source_compiles("${source}" ${result})
  endif()
  set(${result} "${${result}}" PARENT_SCOPE)
  set(${includes_variable} "${includes}" PARENT_SCOPE)
  set(${definitions_variable} "${definitions}" PARENT_SCOPE)
endfunction()

function(bimetal_find_vendor_nccl)
  bimetal_vendor_compiles(BIMETAL_VENDOR_NCCL_COMPILES includes definitions "
    #define USE_C10D_NCCL
    #include <ATen/cuda/CUDAContext.h>
    #include <c10/cuda/CUDAFunctions.h>
    #include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
    int rank(const c10d::ProcessGroupNCCL& group) { return group.getRank(); }")
  if(BIMETAL_TORCH_VENDOR AND NOT BIMETAL_VENDOR_NCCL_COMPILES)
    message(STATUS "torch is for ${BIMETAL_TORCH_VENDOR}, but not all headers that NCCL needs are here: built "
      "without islands of cards. docs/islands.md says what brings them; then: cmake --fresh")
  endif()
  set(BIMETAL_VENDOR_NCCL "${BIMETAL_VENDOR_NCCL_COMPILES}" PARENT_SCOPE)
  set(BIMETAL_VENDOR_NCCL_INCLUDES "${includes}" PARENT_SCOPE)
  set(BIMETAL_VENDOR_NCCL_DEFINITIONS USE_C10D_NCCL ${definitions} PARENT_SCOPE)
endfunction()

function(bimetal_find_vendor_graphs)
  bimetal_vendor_compiles(BIMETAL_VENDOR_GRAPHS_COMPILES includes definitions "
    #include <ATen/cuda/CUDAGraph.h>
    void again(at::cuda::CUDAGraph& graph) { graph.replay(); }")
  if(BIMETAL_TORCH_VENDOR AND NOT BIMETAL_VENDOR_GRAPHS_COMPILES)
    message(STATUS "torch is for ${BIMETAL_TORCH_VENDOR}, but the headers of its runtime are not here: built "
      "without train.graphs. docs/islands.md says what brings them; then: cmake --fresh")
  endif()
  set(BIMETAL_VENDOR_GRAPHS "${BIMETAL_VENDOR_GRAPHS_COMPILES}" PARENT_SCOPE)
  set(BIMETAL_VENDOR_GRAPHS_INCLUDES "${includes}" PARENT_SCOPE)
  set(BIMETAL_VENDOR_GRAPHS_DEFINITIONS "${definitions}" PARENT_SCOPE)
endfunction()
