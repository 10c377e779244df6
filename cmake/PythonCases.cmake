# bimetal_python_cases(<prefix> TOPICS … [ENVIRONMENT NAME=value…] [TIMEOUT s])
# Makes each case of test_<topic>.py in the current folder a test of CTest's, <prefix>.<topic>.<Class>.<method>: CTest then runs
# them beside each other, times each, and tries one again by itself (tests/support/list_cases.py).
function(bimetal_python_cases prefix)
  cmake_parse_arguments(ARG "" "TIMEOUT" "TOPICS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(files ${ARG_TOPICS})
  list(TRANSFORM files PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/test_)
  list(TRANSFORM files APPEND .py)
  list(JOIN files "]==] [==[" files)
  set(properties "SKIP_RETURN_CODE 77 SKIP_REGULAR_EXPRESSION [=[OK .skipped=1.]=] TIMEOUT ${ARG_TIMEOUT} \
ENVIRONMENT [=[${ARG_ENVIRONMENT};PYTHONDONTWRITEBYTECODE=1]=]")
  set(described ${CMAKE_CURRENT_BINARY_DIR}/${prefix}_cases.cmake)
  set(list ${CMAKE_CURRENT_BINARY_DIR}/${prefix}_cases_found.cmake)
  file(GENERATE OUTPUT ${described} CONTENT "execute_process(COMMAND [==[${Python3_EXECUTABLE}]==]
  [==[${PROJECT_SOURCE_DIR}/tests/support/list_cases.py]==] [==[${list}]==] [==[${prefix}]==] [==[${Python3_EXECUTABLE}]==]
  [==[${properties}]==] [==[${files}]==] RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR \"the cases of ${prefix} cannot be listed\")
endif()
include([==[${list}]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${described})
endfunction()
