// Lets one source be a CUDA (or HIP) kernel and host code: marks functions that exist on both
// sides. A build without a GPU compiler sees plain C++.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define UCCL_HOST_DEVICE __host__ __device__
#define UCCL_DEVICE __device__
#else
#define UCCL_HOST_DEVICE
#define UCCL_DEVICE
#endif

// Inside a function of both sides: set while the device's version is compiled.
#if defined(__CUDA_ARCH__) || (defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__)
#define UCCL_DEVICE_CODE 1
#else
#define UCCL_DEVICE_CODE 0
#endif
