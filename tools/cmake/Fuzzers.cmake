# tests/fuzz: the library of fuzz targets, the test that replays the corpus (any compiler), and one libFuzzer program
# for each target, fuzz_<name> (clang, with JAX_UCCL_BUILD_FUZZERS).
set(_fuzz "${CMAKE_CURRENT_SOURCE_DIR}/tests/fuzz")
file(GLOB _fuzz_sources CONFIGURE_DEPENDS "${_fuzz}/*.cc")
list(FILTER _fuzz_sources EXCLUDE REGEX "(_test|fuzzer_main)\\.cc$")
_uccl_library(uccl_fuzz "${_fuzz_sources}" "uccl_collectives_testing" "")

if(JAX_UCCL_BUILD_TESTS AND NOT JAX_UCCL_SANITIZE STREQUAL "thread")  # one thread replays
  uccl_test(fuzz_replay_test "${_fuzz}/replay_test.cc" uccl_fuzz)
endif()

if(JAX_UCCL_BUILD_FUZZERS)
  foreach(target wire connection text)
    add_executable(fuzz_${target} "${_fuzz}/fuzzer_main.cc")
    target_compile_definitions(fuzz_${target} PRIVATE "UCCL_FUZZ_TARGET=\"${target}\"")
    target_link_libraries(fuzz_${target} PRIVATE uccl_fuzz)
    target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
