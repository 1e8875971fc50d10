#include "loadtest/core/knee_search.h"

#include <algorithm>
#include <cmath>

namespace flotilla::loadtest {

std::optional<double> KneeSearch::Next() const {
  const bool found = good_.has_value() && bad_.has_value() && *bad_ <= *good_ * (1 + precision_);
  if (left_ == 0 || found) return std::nullopt;
  return next_;
}

void KneeSearch::Add(bool sustained) {
  --left_;
  if (sustained) {
    good_ = std::max(good_.value_or(0), next_);
  } else {
    bad_ = std::min(bad_.value_or(next_), next_);
  }
  if (!good_.has_value()) {
    next_ = *bad_ / 2;
  } else if (!bad_.has_value()) {
    next_ = *good_ * 2;
  } else {
    next_ = std::sqrt(*good_ * *bad_);
  }
}

}  // namespace flotilla::loadtest
