# Points find_package(Torch) at the wheel in .venv (or in the Python that is active), so that no one
# has to type its path. CMAKE_PREFIX_PATH or Torch_DIR given by hand win.

if(Torch_DIR OR BIMETAL_TORCH_WHEEL_SEARCHED)
  return()
endif()
set(BIMETAL_TORCH_WHEEL_SEARCHED TRUE)
foreach(python "${PROJECT_SOURCE_DIR}/.venv/bin/python" "${PROJECT_SOURCE_DIR}/.venv/Scripts/python.exe" python3)
  execute_process(COMMAND ${python} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND torch_prefix)
    list(APPEND CMAKE_PREFIX_PATH "${torch_prefix}")
    break()
  endif()
endforeach()
