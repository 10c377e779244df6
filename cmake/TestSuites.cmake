# Read by CTest, once for each program of bimetal_test: makes each suite of the program a test. Set before: name, program, list (the
# file that keeps what was found until the program, or the file that sets these, changes), label, case_seconds, together, torch.

if(NOT EXISTS "${program}")
  add_test("${name}_NOT_BUILT" "${name}_NOT_BUILT")
  return()
endif()

# Two runs of CTest that start at once take turns; one that has none after this long goes on without, since another may be stopped.
file(LOCK "${list}.lock" GUARD PROCESS TIMEOUT 300 RESULT_VARIABLE ignored)
if(NOT EXISTS "${list}" OR "${program}" IS_NEWER_THAN "${list}" OR "${CMAKE_CURRENT_LIST_FILE}" IS_NEWER_THAN "${list}"
    OR "${CMAKE_PARENT_LIST_FILE}" IS_NEWER_THAN "${list}")
  # All, whatever GTEST_FILTER is in the environment.
  execute_process(COMMAND "${program}" --gtest_list_tests --gtest_filter=* TIMEOUT 60 OUTPUT_VARIABLE lines RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${program} does not list its tests (${failed})")
  endif()
  string(REGEX REPLACE " *#[^\n]*" "" lines "${lines}")  # what the parameters are
  string(REPLACE "\n" ";" lines "${lines}")
  set(suites "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^  .")
      math(EXPR cases_of_${suite} "${cases_of_${suite}} + 1")
    elseif(line MATCHES "^([A-Za-z0-9_/]+)\\.$")
      set(suite "${CMAKE_MATCH_1}")
      set(cases_of_${suite} 0)
      list(APPEND suites "${suite}")
    endif()
  endforeach()
  if("${suites}" STREQUAL "")
    message(FATAL_ERROR "${program} lists no tests")
  endif()
  set(found "")
  set(how "")
  if(together)
    set(how "BIMETAL_CASES=together;")
  endif()
  if(torch)
    string(APPEND how "BIMETAL_ENDS=quick;")
  endif()
  foreach(suite IN LISTS suites)
    # Cases have alarm clocks of their own: this is for what has none, and no limit of what many may take together.
    math(EXPR most "${case_seconds} * (${cases_of_${suite}} + 1)")
    # COST: of many cases comes before of few, so that no long one is left alone at the end.
    string(APPEND found "add_test([=[${name}.${suite}]=] [=[${program}]=])
set_tests_properties([=[${name}.${suite}]=] PROPERTIES LABELS [=[${label}]=] TIMEOUT ${most} COST ${cases_of_${suite}} ENVIRONMENT
  [=[${how}OMP_NUM_THREADS=1;BIMETAL_TEST_SUITE=${suite};BIMETAL_CASE_SECONDS=${case_seconds}]=])
")
  endforeach()
  file(WRITE "${list}" "${found}")
endif()
include("${list}")
file(LOCK "${list}.lock" RELEASE RESULT_VARIABLE ignored)
