# Everything from outside, as Debian 12 packages it. deploy/install_dependencies.sh installs the packages.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
# Debian's dnnl-config.cmake also demands OpenCL, which the CPU engine of oneDNN does not use.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(kvblend_dnnl INTERFACE)
target_include_directories(kvblend_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(kvblend_dnnl INTERFACE ${DNNL_LIBRARY})
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(spdlog REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)

if(KVBLEND_BUILD_SERVER)
  find_package(Protobuf REQUIRED)
  find_package(gRPC REQUIRED CONFIG)
  find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
  find_package(prometheus-cpp REQUIRED CONFIG)
  find_package(CLI11 REQUIRED CONFIG)
  pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
endif()

if(KVBLEND_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(KVBLEND_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED CONFIG)
endif()

# The CUDA backend is a later addition; saying what was found keeps builds on GPU machines unsurprising.
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
  message(STATUS "CUDA ${CUDAToolkit_VERSION} found; kvblend has no CUDA backend so far, building the CPU backends only")
else()
  message(STATUS "CUDA not found; building the CPU backends only")
endif()
