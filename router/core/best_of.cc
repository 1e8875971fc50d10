#include "router/core/best_of.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace flotilla::router {

double MeanLogprob::Get() const {
  return tokens_ == 0 ? -std::numeric_limits<double>::infinity() : sum_ / tokens_;
}

std::vector<std::uint32_t> BestOf(absl::Span<const double> scores, std::size_t count) {
  std::vector<std::uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    // Comparisons with NaN are always false. So NaN is handled first, or this would not be an
    // order.
    if (std::isnan(scores[a]) || std::isnan(scores[b])) {
      return !std::isnan(scores[a]) && std::isnan(scores[b]);
    }
    return scores[a] > scores[b];
  });
  order.resize(std::min(count, order.size()));
  return order;
}

}  // namespace flotilla::router
