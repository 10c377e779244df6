# For the test: what the recipe requires is the system's, so that nothing is downloaded.
[settings]
os=Linux
arch={{platform.machine()}}
build_type=Release
compiler=gcc
compiler.version={{detect_api.detect_default_compiler()[1].major}}
compiler.cppstd=20
compiler.libcxx=libstdc++11
[conf]
tools.cmake.cmaketoolchain:generator=Ninja
tools.cmake.cmake_layout:test_folder=$TMP
[platform_requires]
asio/1.30.2
fmt/10.2.1
libsodium/1.0.20
nlohmann_json/3.11.3
