# One target per folder: a folder can use only what its target names in DEPS, else it fails to link.

# Rooms of small files that include the same headers are compiled as few large files: a third of the time of a clean
# build, and the price is that a change compiles its neighbours again. The debug preset compiles file by file, so that
# missing includes are noticed there. The tests of a room likewise.
option(KVBLEND_UNITY "Compile rooms of small files, and the tests of a room, as few large files" ON)
set(unity_rooms engine engine_api engine_blend engine_generate engine_kv engine_model engine_prompt engine_runtime
  engine_schedule engine_store engine_store_disk engine_store_format engine_store_redis engine_text kernels_reference
  server_access server_api server_calls server_cli server_cohere server_config server_convert server_grpc server_http server_main
  server_metrics server_openai server_trace)

# kvblend_join_files(TARGET): compiles its files as few large ones.
function(kvblend_join_files TARGET)
  if(KVBLEND_UNITY)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# kvblend_inner_loops(FILE...): sources where the time is spent, at -O3; with sanitizers at -O1, for their checks make g++
# take a minute for some at -O3. A header that was precompiled at another level would take them back to it.
function(kvblend_inner_loops)
  if(KVBLEND_SANITIZER)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O1)
  else()
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")
  endif()
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# kvblend_optimise_sanitized(LEVEL TARGET...): the presets with sanitizers compile without optimisation, which takes half the time
# and keeps stack traces whole. Not so what tests wait for, the arithmetic, and what is fuzzed. There the use of a variable
# after its function's return is not looked for either, which takes an allocation per call.
function(kvblend_optimise_sanitized LEVEL)
  if(KVBLEND_SANITIZER)
    foreach(target IN LISTS ARGN)
      target_compile_options(${target} PRIVATE ${LEVEL})
      if(KVBLEND_SANITIZER STREQUAL "address")
        target_compile_options(${target} PRIVATE -fsanitize-address-use-after-return=never)
      endif()
      set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    endforeach()
  endif()
endfunction()

# The rooms that read bytes from outside. libFuzzer steers by their coverage, not only by that of the fuzzers' own files, and
# finds the more the faster they are. The tests are linked with the same objects, so that one build serves both. Coverage is
# asked for by its parts, for clang++ does not take -fsanitize=fuzzer-no-link beside headers precompiled without it.
set(fuzzed_rooms engine_api engine_kv engine_model engine_store engine_store_disk engine_store_format engine_store_redis
  engine_text server_cohere server_convert server_json server_openai)
function(kvblend_guide_fuzzers TARGET)
  target_compile_options(${TARGET} PRIVATE -fsanitize-coverage=inline-8bit-counters,indirect-calls,pc-table,trace-cmp)
endfunction()

# kvblend_library(NAME SRCS a.cc b.cc DEPS target...)
function(kvblend_library NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${NAME} STATIC ${ARG_SRCS})
  target_include_directories(${NAME} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/kvblend>)
  target_link_libraries(${NAME} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:kvblend_warnings>)
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(engine|kernels)")
    set_property(GLOBAL APPEND PROPERTY KVBLEND_ENGINE_LIBRARIES ${NAME})  # cmake/install.cmake
  endif()
  if(NAME IN_LIST unity_rooms)
    kvblend_join_files(${NAME})
  endif()
  if(KVBLEND_BUILD_FUZZERS AND NAME IN_LIST fuzzed_rooms)
    kvblend_guide_fuzzers(${NAME})
    kvblend_optimise_sanitized(-O1 ${NAME})
  endif()
  kvblend_reuse_precompiled(${NAME} ${ARG_DEPS} ${ARG_PRIVATE_DEPS})
endfunction()

if(KVBLEND_SANITIZER STREQUAL "thread")
  add_library(kvblend_absl_for_tsan OBJECT ${PROJECT_SOURCE_DIR}/tests/sanitizers/absl_for_tsan.cc)
  target_link_libraries(kvblend_absl_for_tsan PUBLIC absl::status absl::synchronization ${CMAKE_DL_LIBS} PRIVATE kvblend_warnings)
endif()

# kvblend_binary(NAME SRCS ... DEPS ...)
function(kvblend_binary NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} kvblend_warnings)
  if(TARGET kvblend_absl_for_tsan)
    target_link_libraries(${NAME} PRIVATE kvblend_absl_for_tsan)
  endif()
  kvblend_reuse_precompiled(${NAME} ${ARG_DEPS})
endfunction()

# kvblend_optimise_test(TARGET): a fifth less time to compile than at -O2, and tests hardly take longer. Headers that were
# precompiled at another level would take them back to that.
function(kvblend_optimise_test TARGET)
  if(NOT KVBLEND_SANITIZER)
    target_compile_options(${TARGET} PRIVATE "$<$<NOT:$<CONFIG:Debug>>:-O1>")
  endif()
endfunction()

# kvblend_test(NAME SRCS ... DEPS ... [LABELS unit] [TIMEOUT seconds without a sanitizer]): one GoogleTest binary, one CTest entry.
# KVBLEND_SOURCE_DIR is where tests find fixtures. tests/summary.py reads the result file. The tests with the longest
# time allowed start first, so that none is left running alone at the end.
function(kvblend_test NAME)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  kvblend_binary(${NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${NAME} PRIVATE KVBLEND_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  kvblend_optimise_test(${NAME})
  kvblend_join_files(${NAME})
  if(KVBLEND_SANITIZER STREQUAL "address")
    # Undefined behaviour is looked for in what is tested; in the tests it would cost a third of their compilation.
    target_compile_options(${NAME} PRIVATE -fno-sanitize=undefined)
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(KVBLEND_SANITIZER)  # a multiple of the time
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/results/gtest/${NAME}.xml")
endfunction()

# kvblend_fuzz_replay(FUZZER MIN_FILES n ROUNDS n DEPS ...): the body of tests/fuzz/FUZZER_fuzzer.cc without libFuzzer, over
# its corpus, which has at least MIN_FILES files, and over ROUNDS mutations of it.
function(kvblend_fuzz_replay FUZZER)
  cmake_parse_arguments(ARG "" "MIN_FILES;ROUNDS" "DEPS" ${ARGN})
  set(name ${FUZZER}_fuzz_replay_test)
  kvblend_test(${name}
    SRCS ${PROJECT_SOURCE_DIR}/tests/support/fuzz_replay.cc ${PROJECT_SOURCE_DIR}/tests/fuzz/${FUZZER}_fuzzer.cc
    DEPS ${ARG_DEPS}
    LABELS unit)
  target_compile_definitions(${name} PRIVATE KVBLEND_FUZZ_CORPUS="${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${FUZZER}"
    KVBLEND_FUZZ_MIN_FILES=${ARG_MIN_FILES} KVBLEND_FUZZ_ROUNDS=${ARG_ROUNDS})
endfunction()
