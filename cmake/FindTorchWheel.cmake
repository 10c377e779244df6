# Finds the torch of the Python for which this is built (pip says which), of .venv, or of the Python that
# is active, so that no one has to type its path. CMAKE_PREFIX_PATH or Torch_DIR given by hand win.

if(Torch_DIR OR BIMETAL_TORCH_WHEEL_SEARCHED)
  return()
endif()
set(BIMETAL_TORCH_WHEEL_SEARCHED TRUE)
foreach(python ${Python3_EXECUTABLE} "${PROJECT_SOURCE_DIR}/.venv/bin/python"
    "${PROJECT_SOURCE_DIR}/.venv/Scripts/python.exe" python3)
  execute_process(
    COMMAND ${python} -c "from importlib.util import find_spec; print(find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND torch_folder)
    file(TO_CMAKE_PATH "${torch_folder}" torch_folder)
    list(APPEND CMAKE_PREFIX_PATH "${torch_folder}")
    break()
  endif()
endforeach()
