"""What `cmake --install` puts down is enough for a program that links the engine through find_package(kvblend), and
for a client that generates its code from the .proto files."""

import os
import tempfile
import unittest

from project import BIN, output_of

CMAKE_LISTS = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(kvblend 0.1 REQUIRED)
add_executable(consumer main.cc)
target_link_libraries(consumer kvblend::engine)
"""
MAIN = """
#include <iostream>

#include "engine/api/engine.h"

int main() {
  kvblend::EngineOptions options;
  options.model_path = "no-such-model.gguf";
  std::cout << kvblend::Engine::Create(options).status() << std::endl;
}
"""


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.prefix = os.path.join(cls.folder, "prefix")
        output_of("cmake", "--install", os.path.dirname(BIN), "--prefix", cls.prefix)

    def test_a_consumer_links_the_engine(self):
        source = os.path.join(self.folder, "consumer")
        os.makedirs(source)
        for name, content in (("CMakeLists.txt", CMAKE_LISTS), ("main.cc", MAIN)):
            with open(os.path.join(source, name), "w", encoding="utf-8") as file:
                file.write(content)
        build = os.path.join(self.folder, "consumer-build")
        output_of("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        output_of("cmake", "--build", build)
        self.assertIn("no-such-model.gguf", output_of(os.path.join(build, "consumer")))

    def test_headers_need_no_others_than_the_installed_ones(self):
        include = os.path.join(self.prefix, "include", "kvblend")
        headers = os.listdir(os.path.join(include, "engine", "api"))
        self.assertIn("engine.h", headers)
        for header in headers:
            output_of("g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", include,
                      os.path.join(include, "engine", "api", header))

    def test_programs_start(self):
        for name in ("kvblend", "kvblend-server"):
            self.assertIn("--help", output_of(os.path.join(self.prefix, "bin", name), "--help"))

    def test_protos_import_each_other(self):
        include = os.path.join(self.prefix, "include")
        output_of("protoc", "-I", include, "-o", os.path.join(self.folder, "descriptors"), "--include_imports",
                  *(f"kvblend/v1/{name}.proto" for name in ("admin", "chunks", "inference")))
