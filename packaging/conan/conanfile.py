"""Bimetal's core (docs/cpp.md): `conan create packaging/conan` in the sources. The part on libtorch is none: ConanCenter has none of
the torches that it is built with."""

import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Bimetal(ConanFile):
    name = "bimetal"
    description = "The torch-free core of Bimetal: collectives, stores and balancing for unlike machines, in C and C++20"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "compiler", "build_type", "arch"
    default_options = {"fmt/*:header_only": True}

    def set_version(self):
        text = pathlib.Path(self.recipe_folder, "../../CMakeLists.txt").read_text()
        self.version = re.search(r"project\(bimetal VERSION (\S+)", text)[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "bench/CMakeLists.txt", "bench/*.cpp", "cmake/*", "src/*"):
            copy(self, pattern, pathlib.Path(self.recipe_folder, "../.."), self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def requirements(self):
        self.requires("asio/1.30.2")
        self.requires("fmt/10.2.1")
        self.requires("libsodium/1.0.20")
        self.requires("nlohmann_json/3.11.3")

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TORCH", "PYTHON", "TESTS", "FABRIC_PEER", "FABRIC_BENCH", "LITE"):
            toolchain.cache_variables[f"BIMETAL_{part}"] = False
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="bimetal_shared_core")

    def package(self):
        copy(self, "LICENSE", self.source_folder, pathlib.Path(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # find_package finds the package's own files.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.set_property("pkg_config_name", "bimetal-core")
        self.cpp_info.builddirs = ["lib/cmake/Bimetal"]
        self.cpp_info.libs = ["bimetal_core"]
