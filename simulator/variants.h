// Variants: what a comparison varies, by name: options of the scheduler core and
// its policies. One table of each; a new policy or option is one row there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/core/options.h"
#include "scheduler/core/policy.h"

namespace flotilla {

// The policy of that name. INVALID_ARGUMENT lists the names there are.
absl::StatusOr<std::unique_ptr<OrderPolicy>> MakePolicy(absl::string_view name);
std::vector<std::string> PolicyNames();

// Sets one field of `options` by its name. INVALID_ARGUMENT: no such option, or not
// a value of it.
absl::Status SetCoreOption(absl::string_view name, absl::string_view value, CoreOptions* options);
std::vector<std::string> CoreOptionNames();

struct Variant {
  std::string label;  // what differs; "" if nothing does
  CoreOptions core;
  std::string policy;
};

// All combinations of `axes`, each "option=value,value,...", and of `policies`, on
// top of `base`. INVALID_ARGUMENT: a bad axis, or more than 64 combinations.
absl::StatusOr<std::vector<Variant>> ExpandVariants(const CoreOptions& base,
                                                    const std::vector<std::string>& axes,
                                                    const std::vector<std::string>& policies);

}  // namespace flotilla
