# Several sources share one compilation, since most of each is reading the same headers (Asio,
# libtorch, GoogleTest): from scratch that takes a third of the time. -DCMAKE_UNITY_BUILD=OFF
# compiles each by itself, which is quicker where one source is edited over and over.

if(NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD ON)
endif()
if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
endif()
