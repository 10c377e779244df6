#!/usr/bin/env python3
"""cmake/DiscoverTests.cmake: several runs of CTest that look for the cases of the same new programs find each once."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
CASES, RUNS = 2000, 4
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(listed C)
enable_testing()
list(APPEND CMAKE_MODULE_PATH "@ROOT@/cmake")
include(DiscoverTests)
add_executable(one listed.c)
add_executable(other listed.c)
bimetal_discover_tests(one TEST_PREFIX one. DISCOVERY_TIMEOUT 60)
bimetal_discover_tests(other TEST_PREFIX other. DISCOVERY_TIMEOUT 60)
"""
LISTED = """
#include <stdio.h>
int main(void) {
  puts("Suite.");
  for (int i = 0; i < @CASES@; ++i) printf("  Case%d\\n", i);
  return 0;
}
"""


@unittest.skipUnless(shutil.which("ctest") and shutil.which("cc"), "CTest and a compiler of C are needed")
class Discovery(unittest.TestCase):
    def test_runs_that_start_at_once_find_each_case_once(self):
        with tempfile.TemporaryDirectory() as folder:
            tree, build = pathlib.Path(folder), str(pathlib.Path(folder, "build"))
            (tree / "CMakeLists.txt").write_text(PROJECT.replace("@ROOT@", ROOT.as_posix()))
            (tree / "listed.c").write_text(LISTED.replace("@CASES@", str(CASES)))
            subprocess.run(["cmake", "-S", folder, "-B", build], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["cmake", "--build", build], check=True, stdout=subprocess.DEVNULL)
            runs = [subprocess.Popen(["ctest", "-N", "--test-dir", build], stdout=subprocess.PIPE, text=True)
                    for _ in range(RUNS)]
            said = [run.communicate(timeout=120)[0] for run in runs]
            said.append(subprocess.run(["ctest", "-N", "--test-dir", build], check=True, capture_output=True, text=True).stdout)
            for text in said:
                self.assertIn(f"Total Tests: {2 * CASES}\n", text)


if __name__ == "__main__":
    sys.exit(unittest.main())
