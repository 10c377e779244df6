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
set(ENV{OMP_NUM_THREADS} 1)
run(${SCRATCH}/build/train_cnn --steps 4 --output ${SCRATCH}/cnn.safetensors)
if(NOT EXISTS ${SCRATCH}/cnn.safetensors)
  message(FATAL_ERROR "the example ended well but saved no model:\n${output}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
