# The XLA FFI handlers (xla_ffi/). Only module.cc and *_bindings.cc know nanobind; the other files are a plain
# library with tests of its own.
set(xla_include "${JAX_UCCL_XLA_INCLUDE_DIR}")
if(NOT xla_include)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  # Found, not imported: importing jax takes seconds.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util as u; print(u.find_spec('jaxlib').submodule_search_locations[0] + '/include')"
    OUTPUT_VARIABLE xla_include OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS "${xla_include}/xla/ffi/api/ffi.h")
  message(FATAL_ERROR "no xla/ffi/api/ffi.h under '${xla_include}': install jaxlib, or set JAX_UCCL_XLA_INCLUDE_DIR")
endif()
message(STATUS "XLA FFI headers: ${xla_include}")

uccl_room(handlers xla_ffi DEPS collectives cuda moe sim SYSTEM_INCLUDES "${xla_include}"
          EXCLUDE "/(module|[a-z0-9_]+_bindings)\\.cc$")
