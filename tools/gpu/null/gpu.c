// A Hopper GPU that does nothing: answers of CUDA's runtime and driver that a program needs to go on.
//
// Memory is the host's, reserved and never touched by a launch; copies copy; launches return at once. What is not here
// is generated to return 0 (`null_gpu.py`). Loaded before the real libraries.
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { SMS = 132, SHARED_BYTES = 232448, SHARED_BYTES_SM = 233472, L2_BYTES = 60 << 20, DRIVER = 13000 };
static const size_t MEMORY = (size_t)139 << 30, PAGE = (size_t)2 << 20;
static __thread int capturing;

// -- memory: a page before each piece holds its size
static void *reserve(size_t size) {
  size = (size + PAGE - 1) / PAGE * PAGE + 2 * PAGE;
  char *all = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *piece = (char *)(((uintptr_t)all + 2 * PAGE - 1) / PAGE * PAGE);
  if (all == MAP_FAILED) return 0;
  ((size_t *)(piece - 4096))[0] = size;
  ((char **)(piece - 4096))[1] = all;
  return piece;
}
cudaError_t cudaMalloc(void **to, size_t size) {
  *to = reserve(size);
  return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *piece) {
  if (piece) munmap(((char **)((char *)piece - 4096))[1], ((size_t *)((char *)piece - 4096))[0]);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **to, size_t size, cudaStream_t stream) { return cudaMalloc(to, size); }
cudaError_t cudaFreeAsync(void *piece, cudaStream_t stream) { return cudaFree(piece); }
cudaError_t cudaHostAlloc(void **to, size_t size, unsigned flags) { return cudaMalloc(to, size); }
cudaError_t cudaMallocHost(void **to, size_t size) { return cudaMalloc(to, size); }
cudaError_t cudaFreeHost(void *piece) { return cudaFree(piece); }
cudaError_t cudaHostGetDevicePointer(void **to, void *host, unsigned flags) {
  *to = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *free = *total = MEMORY;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  if (kind != cudaMemcpyDeviceToDevice) memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *to, const void *piece) {
  memset(to, 0, sizeof *to);
  to->type = cudaMemoryTypeDevice;
  to->devicePointer = (void *)piece;
  return cudaSuccess;
}

// -- the device
cudaError_t cudaGetDeviceCount(int *to) {
  *to = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *to) {
  *to = 0;
  return cudaSuccess;
}
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *to, int device) {
  memset(to, 0, sizeof *to);
  strcpy(to->name, "a GPU that does nothing");
  to->major = 9;
  to->totalGlobalMem = MEMORY;
  to->multiProcessorCount = SMS;
  to->l2CacheSize = L2_BYTES;
  to->warpSize = 32;
  to->sharedMemPerBlock = 49152;
  to->sharedMemPerBlockOptin = SHARED_BYTES;
  to->sharedMemPerMultiprocessor = SHARED_BYTES_SM;
  to->regsPerBlock = to->regsPerMultiprocessor = 65536;
  to->maxThreadsPerBlock = to->maxThreadsDim[0] = to->maxThreadsDim[1] = 1024;
  to->maxThreadsDim[2] = 64;
  to->maxGridSize[0] = INT32_MAX;
  to->maxGridSize[1] = to->maxGridSize[2] = 65535;
  to->maxThreadsPerMultiProcessor = 2048;
  to->maxBlocksPerMultiProcessor = 32;
  to->textureAlignment = 512;
  to->cooperativeLaunch = to->unifiedAddressing = 1;
  return cudaSuccess;
}
static int attribute(int which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return SMS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return L2_BYTES;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return SHARED_BYTES;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return SHARED_BYTES_SM;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return INT32_MAX;
    default: return 1;
  }
}
cudaError_t cudaDeviceGetAttribute(int *to, enum cudaDeviceAttr which, int device) {
  *to = attribute(which);
  return cudaSuccess;
}
CUresult cuDeviceGetAttribute(int *to, CUdevice_attribute which, CUdevice device) {
  *to = attribute(which);
  return CUDA_SUCCESS;
}
cudaError_t cudaDriverGetVersion(int *to) {
  *to = DRIVER;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *to) { return cudaDriverGetVersion(to); }
CUresult cuDriverGetVersion(int *to) { return (CUresult)cudaDriverGetVersion(to); }
CUresult cuDeviceGetCount(int *to) { return (CUresult)cudaGetDeviceCount(to); }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *to) {
  *to = (CUcontext)16;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *to, CUpointer_attribute which, CUdeviceptr piece) {
  *(CUdeviceptr *)to = piece;
  return CUDA_SUCCESS;
}
const char *cudaGetErrorString(cudaError_t error) { return "an error on a GPU that does nothing"; }
const char *cudaGetErrorName(cudaError_t error) { return "error"; }
static cudaError_t entry(const char *name, void **to, enum cudaDriverEntryPointQueryResult *found) {
  *to = dlsym(RTLD_DEFAULT, name);
  if (found) *found = *to ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *name, void **to, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found) {
  return entry(name, to, found);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **to, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
  return entry(name, to, found);
}

// -- streams, events, graphs
#define HANDLE(type) \
  {                                        \
    *to = (type)16;                        \
    return 0;                              \
  }
cudaError_t cudaStreamCreate(cudaStream_t *to) HANDLE(cudaStream_t)
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *to, unsigned flags) HANDLE(cudaStream_t)
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *to, unsigned flags, int priority) HANDLE(cudaStream_t)
cudaError_t cudaEventCreate(cudaEvent_t *to) HANDLE(cudaEvent_t)
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *to, unsigned flags) HANDLE(cudaEvent_t)
cudaError_t cudaEventElapsedTime(float *to, cudaEvent_t begin, cudaEvent_t end) {
  *to = 1.0f;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriorityRange(int *least, int *greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return cudaStreamGetPriorityRange(least, greatest);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  capturing = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *to) {
  capturing = 0;
  *to = (cudaGraph_t)16;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *to) {
  *to = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#undef cudaStreamGetCaptureInfo
static cudaError_t capture_info(enum cudaStreamCaptureStatus *to, unsigned long long *id) {
  if (id) *id = 1;
  return cudaStreamIsCapturing(0, to);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *to, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  if (graph) *graph = (cudaGraph_t)16;
  if (count) *count = 0;
  return capture_info(to, id);
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *to, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count) {
  return cudaStreamGetCaptureInfo(stream, to, id, graph, nodes, 0, count);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long flags)
    HANDLE(cudaGraphExec_t)
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long flags)
    HANDLE(cudaGraphExec_t)

// -- kernels
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *to, const void *function) {
  memset(to, 0, sizeof *to);
  to->ptxVersion = to->binaryVersion = 90;
  to->maxThreadsPerBlock = 1024;
  to->numRegs = 32;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *to, const void *function, int threads, size_t shared) {
  *to = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *to, const void *function, int threads,
                                                                   size_t shared, unsigned flags) {
  *to = 1;
  return cudaSuccess;
}
CUresult cuFuncGetAttribute(int *to, CUfunction_attribute which, CUfunction function) {
  *to = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule *to, const char *path) HANDLE(CUmodule)
CUresult cuModuleLoadData(CUmodule *to, const void *image) HANDLE(CUmodule)
CUresult cuModuleLoadDataEx(CUmodule *to, const void *image, unsigned n, CUjit_option *options, void **values)
    HANDLE(CUmodule)
CUresult cuModuleGetFunction(CUfunction *to, CUmodule module, const char *name) HANDLE(CUfunction)
CUresult cuLibraryLoadFromFile(CUlibrary *to, const char *path, CUjit_option *a, void **b, unsigned c,
                               CUlibraryOption *d, void **e, unsigned f) HANDLE(CUlibrary)
CUresult cuLibraryLoadData(CUlibrary *to, const void *image, CUjit_option *a, void **b, unsigned c, CUlibraryOption *d,
                           void **e, unsigned f) HANDLE(CUlibrary)
CUresult cuLibraryGetKernel(CUkernel *to, CUlibrary library, const char *name) HANDLE(CUkernel)
CUresult cuKernelGetFunction(CUfunction *to, CUkernel kernel) HANDLE(CUfunction)
CUresult cuLibraryEnumerateKernels(CUkernel *to, unsigned count, CUlibrary library) HANDLE(CUkernel)
CUresult cuLibraryGetKernelCount(unsigned *to, CUlibrary library) {
  *to = 1;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **to) {
  *to = "an error on a GPU that does nothing";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **to) { return cuGetErrorString(error, to); }

// -- products of matrices
int cublasCreate_v2(void **to) HANDLE(void *)
int cublasLtCreate(void **to) HANDLE(void *)
int cublasLtMatmulDescCreate(void **to, int type, int scale) HANDLE(void *)
int cublasLtMatrixLayoutCreate(void **to, int type, uint64_t rows, uint64_t columns, int64_t ld) HANDLE(void *)
int cublasLtMatmulPreferenceCreate(void **to) HANDLE(void *)
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
  memset(results, 0, 96);
  *found = 1;
  return 0;
}

// -- PyTorch's own kernels that are compiled when they are asked for
int nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int *to) {
  *to = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int *to) {
  *to = 90;
  return 0;
}
int nvrtcCreateProgram(void **to, const char *text, const char *name, int count, const char *const *headers,
                       const char *const *names) HANDLE(void *)
int nvrtcCompileProgram(void *program, int count, const char *const *options) { return 0; }
int nvrtcAddNameExpression(void *program, const char *name) { return 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcGetLoweredName(void *program, const char *name, const char **to) {
  *to = "kernel";
  return 0;
}
static int one(size_t *to) {
  *to = 1;
  return 0;
}
static int nothing(char *to) {
  *to = 0;
  return 0;
}
int nvrtcGetPTXSize(void *program, size_t *to) { return one(to); }
int nvrtcGetCUBINSize(void *program, size_t *to) { return one(to); }
int nvrtcGetProgramLogSize(void *program, size_t *to) { return one(to); }
int nvrtcGetPTX(void *program, char *to) { return nothing(to); }
int nvrtcGetCUBIN(void *program, char *to) { return nothing(to); }
int nvrtcGetProgramLog(void *program, char *to) { return nothing(to); }
