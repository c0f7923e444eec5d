# uccl_room(<name> <folder> [DEPS <rooms>] [SYSTEM_INCLUDES <folders>] [EXCLUDE <regex>] [ONE_THREAD]
#           [ONE_THREAD_TESTS <regex>])
#   <folder>/**/*.cc              -> library uccl_<name>
#   <folder>/**/testing/*.cc      -> library uccl_<name>_testing, for tests of this room and of those above it
#   <folder>/**/*_test.cc         -> one executable and one ctest each, core/cc/swift_test.cc -> core_cc_swift_test
#   ONE_THREAD: nothing there knows threads, so ThreadSanitizer would find nothing; its tests are left out there.
#   ONE_THREAD_TESTS: those tests of a room with threads of which the same is true.
# A room without sources yet is header-only.
find_package(Threads REQUIRED)

add_library(uccl_flags INTERFACE)
target_include_directories(uccl_flags INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}")
# A product and a sum that are rounded once instead of twice would differ between processors. nvcc has words of its
# own for all of these (Cuda.cmake).
target_compile_options(uccl_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-ffp-contract=off>")
target_link_libraries(uccl_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Cries wolf over std::string's operator+ (gcc bug 105651).
  target_compile_options(uccl_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(JAX_UCCL_WERROR)
  target_compile_options(uccl_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(JAX_UCCL_SANITIZE STREQUAL "address")
  set(_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(JAX_UCCL_SANITIZE STREQUAL "thread")
  set(_sanitize -fsanitize=thread)
elseif(JAX_UCCL_SANITIZE)
  message(FATAL_ERROR "JAX_UCCL_SANITIZE is '${JAX_UCCL_SANITIZE}'; it may be empty, address or thread")
endif()
if(JAX_UCCL_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang" OR JAX_UCCL_SANITIZE)
    message(FATAL_ERROR "JAX_UCCL_BUILD_FUZZERS needs clang, and brings its own sanitizers")
  endif()
  set(_sanitize -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_compile_options(uccl_flags INTERFACE ${_sanitize} -g1 -fno-omit-frame-pointer)
  target_compile_definitions(uccl_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(uccl_flags INTERFACE ${_sanitize})
endif()
if(JAX_UCCL_SANITIZE)
  # Line numbers only: tracking variables through the instrumentation makes gcc three times slower. Its middle end
  # also warns falsely there.
  target_compile_options(uccl_flags INTERFACE ${_sanitize} -g1 -fno-omit-frame-pointer
                         -Wno-maybe-uninitialized -Wno-tsan)
  target_link_options(uccl_flags INTERFACE ${_sanitize})
  set(_library_options -O1)
  set(_test_options -O0)
  if(JAX_UCCL_SANITIZE STREQUAL "address")
    # Undefined behaviour is looked for in libraries: in tests it costs a third of their compilation.
    list(APPEND _test_options -fno-sanitize=undefined)
  endif()
else()
  set(_library_options)
  set(_test_options -O1)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(_ccache_with_header -fpch-preprocess)  # else ccache refuses what includes a precompiled header
endif()
list(APPEND _test_options ${_ccache_with_header})

# What many files include; only a sanitized build precompiles it, so that the others still find a file that forgets
# one of these. A sanitized file compiles in a tenth to a fifth less time.
set(_precompiled)
if(JAX_UCCL_SANITIZE)
  list(APPEND _library_options ${_ccache_with_header})
  set(_precompiled <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <functional> <map> <memory>
      <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
endif()

# A target with no code but a precompiled header. It serves only where options and settings are equal.
function(_uccl_header target options position_independent)
  file(CONFIGURE OUTPUT ${target}.cc CONTENT "// Carries a precompiled header.\n")
  add_library(${target} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/${target}.cc")
  target_compile_options(${target} PRIVATE ${options})
  target_link_libraries(${target} PRIVATE uccl_flags)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ${position_independent})
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

if(JAX_UCCL_BUILD_TESTS)
  # Half of the time to compile a small test is GoogleTest's header. Tests are no libraries.
  _uccl_header(uccl_test_header "${_test_options}" OFF <gtest/gtest.h> ${_precompiled})
  target_link_libraries(uccl_test_header PRIVATE GTest::gtest_main)
endif()
if(_precompiled)
  _uccl_header(uccl_library_header "${_library_options}" ON ${_precompiled})
endif()

function(_uccl_library target sources links includes)
  if(sources AND JAX_UCCL_ROOMS_FROM)
    # Rooms do not depend on the Python version: the module of a second Python only links.
    add_library(${target} STATIC IMPORTED)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${JAX_UCCL_ROOMS_FROM}/lib${target}.a")
    target_link_libraries(${target} INTERFACE uccl_flags ${links})
    if(includes)
      target_include_directories(${target} SYSTEM INTERFACE ${includes})
    endif()
  elseif(sources)
    add_library(${target} STATIC ${sources})
    target_compile_options(${target} PRIVATE ${_library_options})
    target_link_libraries(${target} PUBLIC uccl_flags ${links})
    if(_precompiled)
      target_precompile_headers(${target} REUSE_FROM uccl_library_header)
    endif()
    if(includes)
      target_include_directories(${target} SYSTEM PUBLIC ${includes})
    endif()
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE uccl_flags ${links})
    if(includes)
      target_include_directories(${target} SYSTEM INTERFACE ${includes})
    endif()
  endif()
endfunction()

# One executable and one ctest of the same name.
function(uccl_test target source library)
  add_executable(${target} "${source}")
  # Tests are compiled often and run shortly: the last -O wins.
  target_compile_options(${target} PRIVATE ${_test_options})
  target_link_libraries(${target} PRIVATE ${library} GTest::gtest_main)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_precompile_headers(${target} REUSE_FROM uccl_test_header)
  add_test(NAME ${target} COMMAND ${target})
  # Some tests read files of the tree, for instance the golden bytes in docs/wire_format.md.
  set_tests_properties(${target} PROPERTIES
    TIMEOUT 600
    ENVIRONMENT "UCCL_SOURCE_ROOT=${CMAKE_CURRENT_SOURCE_DIR}")
endfunction()

function(uccl_room name folder)
  cmake_parse_arguments(ARG "ONE_THREAD" "EXCLUDE;ONE_THREAD_TESTS" "DEPS;SYSTEM_INCLUDES" ${ARGN})
  set(root "${CMAKE_CURRENT_SOURCE_DIR}/${folder}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${root}/*.cc")
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  set(testing ${sources})
  list(FILTER testing INCLUDE REGEX "/testing/[^/]+$")
  list(FILTER sources EXCLUDE REGEX "/testing/[^/]+$")
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ARG_EXCLUDE}")
  endif()

  set(links)
  set(testing_links uccl_${name})
  foreach(dep IN LISTS ARG_DEPS)
    list(APPEND links uccl_${dep})
    list(APPEND testing_links uccl_${dep}_testing)
  endforeach()
  _uccl_library(uccl_${name} "${sources}" "${links}" "${ARG_SYSTEM_INCLUDES}")
  if(JAX_UCCL_BUILD_TESTS OR JAX_UCCL_BUILD_FUZZERS)
    _uccl_library(uccl_${name}_testing "${testing}" "${testing_links}" "")
  endif()
  if(NOT JAX_UCCL_BUILD_TESTS OR (ARG_ONE_THREAD AND JAX_UCCL_SANITIZE STREQUAL "thread"))
    return()
  endif()

  if(ARG_ONE_THREAD_TESTS AND JAX_UCCL_SANITIZE STREQUAL "thread")
    list(FILTER tests EXCLUDE REGEX "${ARG_ONE_THREAD_TESTS}")
  endif()
  foreach(test IN LISTS tests)
    file(RELATIVE_PATH target "${root}" "${test}")
    string(REGEX REPLACE "\\.cc$" "" target "${name}/${target}")
    string(REPLACE "/" "_" target "${target}")
    uccl_test(${target} "${test}" uccl_${name}_testing)
  endforeach()
endfunction()
