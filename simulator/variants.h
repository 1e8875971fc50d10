// Variants: what a comparison varies, by name: options of the scheduler core and
// its policies. A new option is one row in the table of variants.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/core/options.h"
#include "scheduler/core/policy.h"

namespace flotilla::simulator {

// Whether there is a policy of that name (PolicyNames). INVALID_ARGUMENT lists them.
absl::Status CheckPolicy(absl::string_view name);

// Sets one field of `options` by its name. INVALID_ARGUMENT: no such option, or not
// a value of it.
absl::Status SetCoreOption(absl::string_view name, absl::string_view value,
                           scheduler::CoreOptions* options);
std::vector<std::string> CoreOptionNames();

struct Variant {
  std::string label;  // what differs; "" if nothing does
  scheduler::CoreOptions core;
  std::string policy;
  std::optional<std::uint64_t> host_tokens;  // Machine::host_tokens; none: the machine's own
};

// All combinations of `axes`, each "option=value,value,...", and of `policies`, on
// top of `base`. An option is one of CoreOptionNames, or host_tokens. A policy is a name of
// PolicyNames, or NAME+fair_share. INVALID_ARGUMENT: a bad axis, or more than 64 combinations.
absl::StatusOr<std::vector<Variant>> ExpandVariants(const scheduler::CoreOptions& base,
                                                    const std::vector<std::string>& axes,
                                                    const std::vector<std::string>& policies);

}  // namespace flotilla::simulator
