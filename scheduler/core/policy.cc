#include "scheduler/core/policy.h"

namespace flotilla::scheduler {

std::vector<absl::string_view> PolicyNames() { return {"priority", "fcfs", "srpt", "edf"}; }

std::unique_ptr<OrderPolicy> MakePolicy(absl::string_view name) {
  if (name == "fcfs") return std::make_unique<FcfsPolicy>();
  if (name == "priority") return std::make_unique<PriorityPolicy>();
  if (name == "srpt") return std::make_unique<SrptPolicy>();
  if (name == "edf") return std::make_unique<DeadlinePolicy>();
  return nullptr;
}

}  // namespace flotilla::scheduler
