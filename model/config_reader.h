// Reads the numbers of a configuration within bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "model/configuration.h"

namespace flotilla::model {

// The first failure sticks, and later reads return 0.
class ConfigReader {
 public:
  explicit ConfigReader(const Configuration& in) : in_(in) {}

  const absl::Status& status() const { return status_; }

  void Fail(absl::Status status) {
    if (status_.ok()) status_.Update(status);
  }
  // Fails unless `holds`, naming the key, its value if it is an integer, and the problem.
  void Require(bool holds, std::string_view key, std::string_view problem) {
    if (!holds) Fail(InvalidArgument(Stated(key), " ", problem));
  }
  bool Has(std::string_view key) const { return in_.Has(key); }
  // "KEY = VALUE" as the file has them; the key alone if its value is not an integer.
  std::string Stated(std::string_view key) const {
    const auto value = in_.Has(key) ? in_.Uint(key) : absl::NotFoundError("");
    return value.ok() ? Cat(in_.NameOf(key), " = ", *value) : in_.NameOf(key);
  }

  // An integer in [min, max]; an absent key is an error unless there is a fallback.
  uint32_t Uint(std::string_view key, uint64_t min, uint64_t max,
                std::optional<uint64_t> fallback = std::nullopt) {
    const auto value = fallback && !in_.Has(key) ? *fallback : in_.Uint(key);
    return static_cast<uint32_t>(Bounded(key, value, min, max));
  }

  float Float(std::string_view key, double min, double max, std::optional<double> fallback) {
    const auto value = fallback && !in_.Has(key) ? *fallback : in_.Float(key);
    return static_cast<float>(Bounded(key, value, min, max));
  }

  // The number 0 where the key is absent.
  uint32_t UintOrNone(std::string_view key, uint64_t max) {
    return in_.Has(key) ? Uint(key, 0, max) : 0;
  }
  float FloatOrNone(std::string_view key, double max) {
    return in_.Has(key) ? Float(key, 0, max, std::nullopt) : 0;
  }

  bool Bool(std::string_view key, bool fallback) {
    if (!in_.Has(key)) return fallback;
    const auto value = in_.Bool(key);
    if (!value.ok()) Fail(absl::InvalidArgumentError(value.status().message()));
    return value.value_or(false);
  }

  // As many numbers as `count` in [min, max].
  std::vector<double> Numbers(std::string_view key, size_t count, double min, double max) {
    auto values = in_.Numbers(key);
    if (!values.ok()) {
      Fail(absl::InvalidArgumentError(values.status().message()));
      return {};
    }
    if (values->size() != count) {
      Fail(InvalidArgument(in_.NameOf(key), " has ", values->size(), " numbers, not ", count));
      return {};
    }
    for (const double value : *values) {
      if (!(value >= min && value <= max)) {
        Fail(InvalidArgument(in_.NameOf(key), " has ", value, ", not ", min, "..", max));
      }
    }
    return *std::move(values);
  }

  // As many values as `count`, each of which is true or false, 1 or 0.
  std::vector<bool> Flags(std::string_view key, size_t count) {
    std::vector<bool> flags;
    for (const double value : Numbers(key, count, 0, 1)) {
      if (value != 0 && value != 1) Fail(InvalidArgument(in_.NameOf(key), " has ", value));
      flags.push_back(value != 0);
    }
    return flags;
  }

  // Refuses a file that asks for a feature by setting an integer other than 0.
  void RefuseIfSet(std::string_view key) {
    if (!in_.Has(key)) return;
    const auto value = in_.Uint(key);
    if (!value.ok() || *value != 0) Fail(Unimplemented(in_.NameOf(key), " is not supported"));
  }

 private:
  template <class Number>
  Number Bounded(std::string_view key, const absl::StatusOr<Number>& value, Number min,
                 Number max) {
    if (!value.ok()) {
      // A missing key is an error of the file.
      Fail(absl::InvalidArgumentError(value.status().message()));
      return 0;
    }
    if (*value >= min && *value <= max) return *value;  // a NaN is refused too
    Fail(InvalidArgument(in_.NameOf(key), " = ", *value, " is not in ", min, "..", max));
    return 0;
  }

  const Configuration& in_;
  absl::Status status_;
};

}  // namespace flotilla::model
