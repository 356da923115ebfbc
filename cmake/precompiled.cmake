# Headers that most files include, parsed once per kind of target instead of once per file. Files still include what
# they use: -DKVBLEND_PCH=OFF finds what is missing. Only headers from outside belong here, for a change of one of ours
# would compile everything anew.
option(KVBLEND_PCH "Precompile the headers from outside that most files include" ON)

# kvblend_precompile(NAME HEADERS <header>... [DEPS target...]): what targets reuse.
function(kvblend_precompile NAME)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/precompiled/${NAME}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(kvblend_pch_${NAME} OBJECT ${source})
  target_link_libraries(kvblend_pch_${NAME} PRIVATE ${ARG_DEPS})
  target_precompile_headers(kvblend_pch_${NAME} PRIVATE ${ARG_HEADERS})
  if(NAME STREQUAL "tests")
    kvblend_optimise_test(kvblend_pch_${NAME})
  endif()
endfunction()

# kvblend_reuse_precompiled(TARGET dependency...): the headers that fit what TARGET uses.
function(kvblend_reuse_precompiled TARGET)
  if(NOT KVBLEND_PCH)
    return()
  endif()
  set(name common)
  if("GTest::gmock" IN_LIST ARGN)
    set(name tests)
  elseif("CLI11::CLI11" IN_LIST ARGN)
    set(name cli)
  elseif("gRPC::grpc++" IN_LIST ARGN OR "proto" IN_LIST ARGN OR "proto_messages" IN_LIST ARGN)
    set(name grpc)
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM kvblend_pch_${name})
endfunction()

if(KVBLEND_PCH)
  set(common <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <deque> <functional> <limits> <map> <memory>
    <optional> <string> <string_view> <thread> <utility> <vector>
    <absl/container/flat_hash_map.h> <absl/functional/any_invocable.h> <absl/status/status.h> <absl/status/statusor.h>
    <absl/strings/str_cat.h> <absl/synchronization/mutex.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>)
  kvblend_precompile(common HEADERS ${common} DEPS absl::statusor absl::flat_hash_map absl::any_invocable)
  if(TARGET CLI11::CLI11)
    kvblend_precompile(cli HEADERS ${common} <CLI/CLI.hpp> DEPS absl::statusor absl::flat_hash_map CLI11::CLI11)
  endif()
  if(KVBLEND_BUILD_SERVER)
    kvblend_precompile(grpc
      HEADERS ${common} <google/protobuf/message.h> <google/protobuf/map.h> <google/protobuf/repeated_field.h>
        <grpcpp/generic/generic_stub.h> <grpcpp/server_context.h> <grpcpp/support/server_callback.h>
      DEPS absl::statusor absl::flat_hash_map gRPC::grpc++)
  endif()
  if(KVBLEND_BUILD_TESTS)
    kvblend_precompile(tests HEADERS ${common} <gmock/gmock.h> <gtest/gtest.h>
      DEPS absl::statusor absl::flat_hash_map GTest::gmock GTest::gtest)
  endif()
endif()
