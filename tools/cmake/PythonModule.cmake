# The extension module jax_uccl/_uccl: nanobind around the handlers.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module
             OPTIONAL_COMPONENTS Development.SABIModule)

if(NOT nanobind_ROOT)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                  OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
find_package(nanobind CONFIG REQUIRED)

file(GLOB bindings CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/xla_ffi/*_bindings.cc")
set(module_sources "${CMAKE_CURRENT_SOURCE_DIR}/xla_ffi/module.cc" ${bindings})
if(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/xla_ffi/module.cc")
  message(FATAL_ERROR "xla_ffi/module.cc is missing; configure with -DJAX_UCCL_BUILD_PYTHON=OFF to build without it")
endif()
# Stable ABI from Python 3.12 on; nanobind itself falls back to an ordinary build on 3.11.
nanobind_add_module(_uccl STABLE_ABI NB_STATIC ${module_sources})
target_link_libraries(_uccl PRIVATE uccl_handlers)
target_link_options(_uccl PRIVATE -Wl,--gc-sections)
if(JAX_UCCL_INPLACE)
  set_target_properties(_uccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/jax_uccl")
endif()
install(TARGETS _uccl LIBRARY DESTINATION jax_uccl)
