# Build rules shared by every folder: warnings as errors, sanitizers, ccache,
# a fast linker, and the two helpers that folders use.

set(FLOTILLA_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread, or what the preset fuzz says")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_PCH_EXTSUM=1 ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

# Contraction is never left to the compiler: results must not depend on it.
add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc collects garbage from a heap of 128 MB on. Here it does not before 1 GiB, which no source
  # reaches. That saves a seventh of its time, for 120 MB more at most.
  add_compile_options("SHELL:--param ggc-min-heapsize=1048576")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False positives on std::string's operator= and +, fixed in GCC 13 (PR105651). Through a
  # precompiled header gcc also reports bounds of code that comes from the library's headers.
  add_compile_options(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()
# What the code of tests is compiled with, and their precompiled headers, which gcc takes with the
# same options only. Some of the libraries bring -pthread along. What tests test keeps -O2, but the
# linker takes templates that both use from the tests. So only tests that take little time have -O0,
# which saves a fifth of the time to compile them.
set(FLOTILLA_TEST_FLAGS -pthread $<$<CONFIG:Release>:-O0>)
set(FLOTILLA_BUSY_TEST_FLAGS -pthread $<$<CONFIG:Release>:-O1>)
# Instruction sets of the SIMD kernels: given to their own files only.
set(FLOTILLA_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(FLOTILLA_AVX512_FLAGS -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)

if(FLOTILLA_SANITIZE)
  add_compile_options(-fsanitize=${FLOTILLA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${FLOTILLA_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc's static analysis of absl and std containers reports false positives
    # once sanitizer code is in between.
    add_compile_options(-Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endif()
if(FLOTILLA_SANITIZE STREQUAL "thread")
  # ThreadSanitizer does not know fences; Asio's own locks order its handlers.
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  set(tsan_absl ${PROJECT_SOURCE_DIR}/tests/sanitizers/tsan_absl_mutex.cc)
  file(STRINGS ${tsan_absl} wrapped REGEX "^#define [A-Z_]+ _Z")
  list(TRANSFORM wrapped REPLACE "^#define [A-Z_]+ " "-Wl,--wrap=")
  add_link_options(${wrapped})
  add_library(flotilla_tsan_absl STATIC ${tsan_absl})
  link_libraries(flotilla_tsan_absl)
endif()

# Sources of one target are compiled together, several at a time, so that what they include is read
# once, and so are templates that they share. That saves a third of a clean build. Names in their
# anonymous namespaces are therefore unique in a target (scripts/check_names.py). A change of one
# source compiles all that are with it: -DFLOTILLA_UNITY=OFF compiles each alone. The sanitizers'
# presets do, so that each is known to include what it needs.
option(FLOTILLA_UNITY "Compile several sources of a target together" ON)

# flotilla_together(target): has its sources compiled together, sixteen at a time.
function(flotilla_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${FLOTILLA_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  if(FLOTILLA_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc takes a source that another one includes for a header, where that would be an error.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# flotilla_library(NAME name SRCS a.cc b.cc DEPS target... [PRECOMPILED target] [APART] [FOR_TESTS])
# A static library whose headers are included root-relative. PRECOMPILED: the target whose
# precompiled header its sources take, flotilla_headers by default; NONE: they take none. APART: each
# source is compiled alone. FOR_TESTS: it is compiled as tests are.
function(flotilla_library)
  cmake_parse_arguments(F "APART;FOR_TESTS" "NAME;PRECOMPILED" "SRCS;DEPS" ${ARGN})
  set(options -pthread)
  if(F_FOR_TESTS)
    set(F_PRECOMPILED flotilla_test_headers)
    set(options ${FLOTILLA_TEST_FLAGS})
    list(APPEND F_DEPS GTest::gtest)
  elseif(NOT F_PRECOMPILED)
    set(F_PRECOMPILED flotilla_headers)
  endif()
  set_property(GLOBAL APPEND PROPERTY FLOTILLA_LIBRARIES ${F_NAME})
  if(F_SRCS)
    add_library(${F_NAME} STATIC ${F_SRCS})
    if(NOT F_APART)
      flotilla_together(${F_NAME})
    endif()
    target_include_directories(${F_NAME} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${F_NAME} PUBLIC ${F_DEPS})
    if(TARGET ${F_PRECOMPILED})
      target_compile_options(${F_NAME} PRIVATE ${options})
      target_precompile_headers(${F_NAME} REUSE_FROM ${F_PRECOMPILED})
    endif()
  else()
    add_library(${F_NAME} INTERFACE)
    target_include_directories(${F_NAME} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${F_NAME} INTERFACE ${F_DEPS})
  endif()
endfunction()

# flotilla_program(NAME name SRCS a.cc DEPS target...)
# A program that is no test.
function(flotilla_program)
  cmake_parse_arguments(F "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${F_NAME} ${F_SRCS})
  target_include_directories(${F_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${F_NAME} PRIVATE ${F_DEPS})
  if(TARGET flotilla_headers)
    target_compile_options(${F_NAME} PRIVATE -pthread)
    target_precompile_headers(${F_NAME} REUSE_FROM flotilla_headers)
  endif()
endfunction()

# flotilla_test(NAME name SRCS a_test.cc DEPS target... [TIMEOUT s] [SERIAL] [SERIAL_CASES filter]
#               [HALVES] [APART] [BUSY] [COST s] [LABELS label...])
# One gtest binary, run by ctest as one test with the source folder as its
# working directory (so data is found under tests/data). SERIAL: with no other test
# beside it, since it compares times. SERIAL_CASES: only these cases of it, as a test of their own.
# HALVES: as two tests, each every other one of its cases, since it takes long. APART: each source is
# compiled alone. BUSY: it computes much itself, so it is compiled with -O1. COST: about the seconds
# that it takes, if many; the longest tests begin first, so that none is left at the end.
function(flotilla_test)
  cmake_parse_arguments(F "SERIAL;HALVES;APART;BUSY" "NAME;TIMEOUT;SERIAL_CASES;COST" "SRCS;DEPS;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${F_NAME} ${F_SRCS})
  if(NOT F_APART)
    flotilla_together(${F_NAME})
  endif()
  target_link_libraries(${F_NAME} PRIVATE ${F_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(F_BUSY)
    target_compile_options(${F_NAME} PRIVATE ${FLOTILLA_BUSY_TEST_FLAGS})
    target_precompile_headers(${F_NAME} REUSE_FROM flotilla_busy_test_headers)
  else()
    target_compile_options(${F_NAME} PRIVATE ${FLOTILLA_TEST_FLAGS})
    target_precompile_headers(${F_NAME} REUSE_FROM flotilla_test_headers)
  endif()
  add_test(NAME ${F_NAME} COMMAND ${F_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(tests ${F_NAME})
  if(F_HALVES OR F_SERIAL_CASES)
    # By a name of its own, which its results get, and which can be built as every test can.
    set(other ${F_NAME}_2)
    add_custom_target(${other} ALL COMMAND ${CMAKE_COMMAND} -E create_symlink ${F_NAME} ${other})
    add_dependencies(${other} ${F_NAME})
    add_test(NAME ${other} COMMAND ${CMAKE_CURRENT_BINARY_DIR}/${other}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    list(APPEND tests ${other})
  endif()
  if(F_HALVES)
    set_tests_properties(${F_NAME} PROPERTIES
      ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=0")
    set_tests_properties(${other} PROPERTIES
      ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=1")
  elseif(F_SERIAL_CASES)
    set_tests_properties(${F_NAME} PROPERTIES ENVIRONMENT "GTEST_FILTER=-${F_SERIAL_CASES}")
    set_tests_properties(${other} PROPERTIES
      ENVIRONMENT "GTEST_FILTER=${F_SERIAL_CASES}" RUN_SERIAL TRUE)
  endif()
  if(F_COST)
    set_tests_properties(${tests} PROPERTIES COST ${F_COST})
  endif()
  if(NOT F_TIMEOUT)
    set(F_TIMEOUT 900)
  endif()
  set_tests_properties(${tests} PROPERTIES TIMEOUT ${F_TIMEOUT} LABELS "${F_LABELS}")
  if(F_SERIAL)
    set_tests_properties(${tests} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
