#include "common/traces/lengths.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

double NormalCdf(double x) { return 0.5 * std::erfc(-x * 0.7071067811865476); }

// Mean of min(X, cut), ln X normal with (mu, sigma).
double CutMean(double mu, double sigma, double cut) {
  const double z = (std::log(cut) - mu) / sigma;
  return std::exp(mu + sigma * sigma / 2) * NormalCdf(z - sigma) + cut * (1 - NormalCdf(z));
}

absl::Status OutOfRange(absl::string_view name, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", range));
}

}  // namespace

absl::Status CheckLengths(absl::string_view name, const LengthDistribution& d) {
  if (d.max < 1 || d.max > 1 << 24) return OutOfRange(absl::StrCat(name, " maximum"), "1..2^24");
  if (!(d.mean >= 1) || !(d.mean <= d.max)) {
    return OutOfRange(absl::StrCat("mean ", name, " length"), absl::StrCat("1..", d.max));
  }
  if (!(d.sigma >= 0) || !(d.sigma <= 4)) return OutOfRange(absl::StrCat(name, " sigma"), "0..4");
  return absl::OkStatus();
}

LengthSource::LengthSource(const LengthDistribution& d) : d_(d) {
  double low = -1, high = 40;  // e^40 is above any cut
  for (int i = 0; d.sigma > 0 && i < 100; ++i) {
    mu_ = (low + high) / 2;
    (CutMean(mu_, d.sigma, d.max) < d.mean ? low : high) = mu_;
  }
}

std::uint32_t LengthSource::Draw(SeededRandom& random) const {
  const double x = d_.sigma > 0 ? std::exp(mu_ + d_.sigma * random.Normal()) : d_.mean;
  return static_cast<std::uint32_t>(std::clamp<double>(std::round(x), 1, d_.max));
}

}  // namespace flotilla
