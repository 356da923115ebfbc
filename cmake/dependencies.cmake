# Everything from outside, as Debian 12 packages it. deploy/install_dependencies.sh installs the packages.

include(${CMAKE_CURRENT_LIST_DIR}/dependencies_engine.cmake)
find_package(Eigen3 REQUIRED NO_MODULE)  # headers alone, that no header of ours includes
find_package(nlohmann_json REQUIRED CONFIG)
if(KVBLEND_BUILD_SERVER OR KVBLEND_BUILD_TESTS)  # the benchmarks read their arguments with it too
  find_package(CLI11 REQUIRED CONFIG)
endif()

if(KVBLEND_BUILD_SERVER)
  find_package(Protobuf REQUIRED)
  find_package(gRPC REQUIRED CONFIG)
  find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
  find_package(prometheus-cpp REQUIRED CONFIG)
  find_package(Boost REQUIRED)  # headers alone: Asio and Beast
endif()

if(KVBLEND_BUILD_TESTS)
  find_package(GTest REQUIRED)
  if(KVBLEND_BUILD_SERVER)
    pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)  # the tests' HTTP client
  endif()
endif()
if(KVBLEND_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED CONFIG)
endif()

# The CUDA backend's kernels are tested without any of this, over an emulated device: docs/cuda-backend.md.
if(KVBLEND_CUDA)
  if(KVBLEND_SANITIZER)
    message(FATAL_ERROR "KVBLEND_CUDA and KVBLEND_SANITIZER do not go together; the emulated device does with 'address'")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # 90 as machine code and as PTX for what comes later
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc 13 knows C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: building the CUDA backend for GPUs")
else()
  message(STATUS "KVBLEND_CUDA is off: the CUDA backend is built for the emulated device of the tests only")
endif()
