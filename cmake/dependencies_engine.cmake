# What the engine and its kernels use from outside, as Debian 12 packages it. The installed CMake package reads this
# file as well, so that a program that links the engine finds the same.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
# Debian's dnnl-config.cmake also demands OpenCL, which the CPU engine of oneDNN does not use.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(kvblend_dnnl INTERFACE IMPORTED GLOBAL)
target_include_directories(kvblend_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(kvblend_dnnl INTERFACE ${DNNL_LIBRARY})
find_package(PkgConfig REQUIRED)
pkg_check_modules(hiredis REQUIRED IMPORTED_TARGET GLOBAL hiredis)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET GLOBAL libhwy)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET GLOBAL liburing)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(spdlog REQUIRED CONFIG)
