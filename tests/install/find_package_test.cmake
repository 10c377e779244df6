# cmake -DBUILD=… -DSCRATCH=… -DEXAMPLE=… -DTORCH_DIR=… -P find_package_test.cmake

file(REMOVE_RECURSE ${SCRATCH})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${SCRATCH}/build -G Ninja -DCMAKE_BUILD_TYPE=Release
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
file(REMOVE_RECURSE ${SCRATCH})
