# csrc/cuda/*.cu -> library uccl_cuda_kernels, and jax_uccl/_uccl_cuda.so around the handlers for CUDA, which
# jax_uccl/_src/cuda_module.py opens when JAX has a CUDA backend. The runtime is linked statically: the object loads
# on a machine without a GPU.
set(_archs 80-real 90-real)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)  # for the probe of enable_language
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND _archs 100-real)
  endif()
  # Newer devices compile the last one's intermediate code when they load it.
  list(TRANSFORM _archs REPLACE "-real$" "" AT -1)
  set(CMAKE_CUDA_ARCHITECTURES ${_archs})
else()
  enable_language(CUDA)
endif()
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know what CUDA 12 learnt
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

function(_uccl_cuda_library target)
  add_library(${target} STATIC ${ARGN})
  target_include_directories(${target} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
  # The warnings of uccl_flags are for C++ alone. As there, a product and a sum are rounded twice.
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr -fmad=false -Xcompiler=-Wall,-Wextra)
  if(JAX_UCCL_WERROR)
    target_compile_options(${target} PRIVATE -Werror=all-warnings)
  endif()
  set_target_properties(${target} PROPERTIES
    CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PUBLIC uccl_cuda CUDA::cudart_static)
endfunction()

file(GLOB _kernels CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/*.cu")
_uccl_cuda_library(uccl_cuda_kernels ${_kernels})

if(TARGET uccl_handlers)
  add_library(_uccl_cuda MODULE "${CMAKE_CURRENT_SOURCE_DIR}/xla_ffi/cuda_handlers.cc")
  target_link_libraries(_uccl_cuda PRIVATE uccl_handlers uccl_cuda_kernels)
  target_link_options(_uccl_cuda PRIVATE -Wl,--gc-sections -Wl,--no-undefined)
  set_target_properties(_uccl_cuda PROPERTIES PREFIX "")
  if(JAX_UCCL_INPLACE)
    set_target_properties(_uccl_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/jax_uccl")
  endif()
  install(TARGETS _uccl_cuda LIBRARY DESTINATION jax_uccl)
endif()

# Bandwidth and FIFO figures, for ./dev gpu-check.
add_executable(gpu_bench EXCLUDE_FROM_ALL benchmarks/gpu_bench.cu)
target_compile_options(gpu_bench PRIVATE --expt-relaxed-constexpr -fmad=false)
set_target_properties(gpu_bench PROPERTIES CUDA_RUNTIME_LIBRARY Static)
target_link_libraries(gpu_bench PRIVATE uccl_cuda_kernels)

# Tests of kernels have the GPU among their launchers then.
if(JAX_UCCL_BUILD_TESTS)
  _uccl_cuda_library(uccl_cuda_device_testing "${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/testing/device_launcher.cu")
  target_link_libraries(uccl_cuda_device_testing PUBLIC uccl_cuda_kernels)
  target_compile_definitions(uccl_cuda_testing PRIVATE UCCL_HAVE_CUDA)
  target_link_libraries(uccl_cuda_testing PUBLIC uccl_cuda_device_testing)
endif()
