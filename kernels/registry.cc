#include <cpuid.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/op_tables.h"
#include "kernels/ops.h"

namespace flotilla::kernels {
namespace {

// Whether the CPU converts fp16. clang 14's __builtin_cpu_supports does not know the name
// f16c.
bool HasF16c() {
  unsigned eax, ebx, ecx = 0, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

absl::Span<const Ops* const> AllOps() {
  static constexpr const Ops* kAll[] = {&kReferenceOps, &kAvx2Ops, &kAvx512Ops};
  return kAll;
}

bool IsaSupported(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return __builtin_cpu_supports("fma") && HasF16c();
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && IsaSupported(Isa::kReference);
    case Isa::kAvx512:
      return IsaSupported(Isa::kReference) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

std::vector<Isa> DetectIsas() {
  std::vector<Isa> isas;
  for (const Ops* ops : AllOps()) {
    if (IsaSupported(ops->isa)) isas.push_back(ops->isa);
  }
  return isas;
}

absl::StatusOr<Isa> ParseIsa(std::string_view name) {
  if (name == "auto") {
    const std::vector<Isa> isas = DetectIsas();
    if (isas.empty()) return absl::FailedPreconditionError("this machine lacks FMA and F16C");
    return isas.back();
  }
  std::string known = "auto";
  for (const Ops* ops : AllOps()) {
    if (ops->name == name) {
      if (IsaSupported(ops->isa)) return ops->isa;
      return absl::FailedPreconditionError(absl::StrCat("this machine lacks the instructions of ",
                                                        std::string(ops->name), ": ",
                                                        std::string(ops->description)));
    }
    absl::StrAppend(&known, ", ", std::string(ops->name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown instruction path \"", std::string(name), "\"; known: ", known));
}

const Ops& GetOps(Isa isa) {
  for (const Ops* ops : AllOps()) {
    if (ops->isa == isa) return *ops;
  }
  std::abort();
}

absl::Status CheckKvDims(const KvDims& dims) {
  const int most = dims.prefix ? kMaxLatentDim : kMaxHeadDim;
  for (const int dim : {dims.key, dims.value}) {
    if (dim <= 0 || dim % 16 != 0 || dim > most || (dims.prefix && dim > dims.key)) {
      return absl::UnimplementedError(absl::StrCat("K and V of ", dims.key, " and ", dims.value,
                                                   " elements are not multiples of 16 up to ",
                                                   most));
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::kernels
