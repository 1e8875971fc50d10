// The memory of the current GPU, through the runtime of CUDA. One thread uses it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/kernels/cuda/op_cases.h"

namespace flotilla::kernels::cuda {

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory();
  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void* Allocate(size_t bytes) override;
  void FreeAll() override;
  int Upload(void* to, const void* from, size_t bytes) override;
  int Download(void* to, const void* from, size_t bytes) override;
  Stream stream() override { return stream_; }
  // Also of kernels that were launched before, which end in an error of a later call.
  std::string Error() override { return error_; }

 private:
  // Keeps what the result says, if it is an error. Returns it as a number.
  int Note(int result, const char* call);

  Stream stream_ = nullptr;
  std::vector<void*> allocations_;
  std::string error_ = "no call of CUDA has failed but, perhaps, a launch";
};

}  // namespace flotilla::kernels::cuda
