# Language level, warnings, sanitizers, compiler cache and output folders: one place for all targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Sloppy as ccache's manual asks for precompiled headers; the rest lets checkouts of the same sources share objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -fpch-preprocess: ccache needs it. The rest: g++ spends a tenth of its time collecting garbage in heaps that fit.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess;--param=ggc-min-heapsize=1000000>")
endif()
# Targets that share precompiled headers agree about macros; protobuf, liburing and hiredis ask for these.
add_compile_definitions(_FILE_OFFSET_BITS=64)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-pthread>")

# Carries the warnings of this project's own code; never applied to generated code.
add_library(kvblend_warnings INTERFACE)
target_compile_options(kvblend_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror>")

if(KVBLEND_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(KVBLEND_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  include_directories(BEFORE SYSTEM ${PROJECT_SOURCE_DIR}/tests/sanitizers/thread)  # headers of libraries that are not built so
  add_link_options(-fsanitize=thread)
elseif(KVBLEND_SANITIZER)
  message(FATAL_ERROR "KVBLEND_SANITIZER is '${KVBLEND_SANITIZER}'; allowed: '', 'address', 'thread'")
endif()
