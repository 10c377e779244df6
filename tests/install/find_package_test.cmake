# cmake -DBUILD=… -DSCRATCH=… -DSOURCES=… -DTORCH_DIR=… -DPYTHON=… -P find_package_test.cmake

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(EXAMPLE ${SOURCES}/examples/cpp)

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)

# The program finds its torch, in the program that it becomes.
run(${SCRATCH}/prefix/bin/bimetal token)
run(${SCRATCH}/prefix/bin/bimetal devices --help)

run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${SCRATCH}/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0
    -DCMAKE_PROJECT_bimetal_examples_INCLUDE=${CMAKE_CURRENT_LIST_DIR}/share_headers.cmake
    -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DTorch_DIR=${TORCH_DIR})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)

# A torch whose minor version is another one.
file(WRITE ${SCRATCH}/torch/share/cmake/Torch/TorchConfig.cmake "")
file(WRITE ${SCRATCH}/torch/share/cmake/Torch/TorchConfigVersion.cmake "set(PACKAGE_VERSION \"2.99.0\")\n")
file(CREATE_LINK ${TORCH_DIR}/../../../lib ${SCRATCH}/torch/lib SYMBOLIC)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${EXAMPLE} -B ${SCRATCH}/other -G Ninja -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
  -DTorch_DIR=${SCRATCH}/torch/share/cmake/Torch RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
if(status EQUAL 0 OR NOT output MATCHES "was built[ \n]+against[ \n]+torch")
  message(FATAL_ERROR "another torch was not refused:\n${output}")
endif()

set(ENV{OMP_NUM_THREADS} 1)
run(${SCRATCH}/build/train_cnn --steps 4 --output ${SCRATCH}/cnn.safetensors)
if(NOT EXISTS ${SCRATCH}/cnn.safetensors)
  message(FATAL_ERROR "the example ended well but saved no model:\n${output}")
endif()
run(${SCRATCH}/build/train_text --steps 60 --output ${SCRATCH}/text.safetensors)
if(NOT EXISTS ${SCRATCH}/text.safetensors OR NOT output MATCHES "perplexity [0-9]+")
  message(FATAL_ERROR "the example ended well but saved no model, or told no perplexity:\n${output}")
endif()
run(${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/cpp_examples.py ${SCRATCH}/build ${SCRATCH}/runs)
file(REMOVE_RECURSE ${SCRATCH})
