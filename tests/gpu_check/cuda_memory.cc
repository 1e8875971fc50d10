#include "tests/gpu_check/cuda_memory.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"

namespace flotilla::kernels::cuda {

CudaMemory::CudaMemory() {
  cudaStream_t stream = nullptr;
  Note(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = stream;
}

CudaMemory::~CudaMemory() {
  FreeAll();
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

void* CudaMemory::Allocate(size_t bytes) {
  void* memory = nullptr;
  if (Note(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "cudaMalloc") != 0) return nullptr;
  allocations_.push_back(memory);
  const auto stream = static_cast<cudaStream_t>(stream_);
  if (Note(cudaMemsetAsync(memory, 0xFF, bytes, stream), "cudaMemsetAsync") != 0) return nullptr;
  return memory;
}

void CudaMemory::FreeAll() {
  Note(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)), "cudaStreamSynchronize");
  for (void* memory : allocations_) Note(cudaFree(memory), "cudaFree");
  allocations_.clear();
}

int CudaMemory::Upload(void* to, const void* from, size_t bytes) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const int result =
      Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  if (result != 0) return result;
  return Note(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

int CudaMemory::Download(void* to, const void* from, size_t bytes) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const int result =
      Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  if (result != 0) return result;
  return Note(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

int CudaMemory::Note(int result, const char* call) {
  if (result != 0) {
    const auto error = static_cast<cudaError_t>(result);
    error_ = absl::StrCat(call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  }
  return result;
}

}  // namespace flotilla::kernels::cuda
