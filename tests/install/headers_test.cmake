# cmake -DBUILD=… -DSCRATCH=… -DTORCH_DIR=… -DPYTHON=… -P headers_test.cmake

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH} --component headers)
run(${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/check_headers.py ${SCRATCH}/include ${TORCH_DIR}/../../..)
file(REMOVE_RECURSE ${SCRATCH})
