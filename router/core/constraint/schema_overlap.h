// Which values a schema takes, as far as it is easily seen. XGrammar writes "oneOf" as "anyOf",
// which is the same only if no value is valid for two of its options. Pure.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

// One schema's parts. It keeps `root`. Options that refer to options could be looked at any number
// of times, so there is a bound of work; beyond it every schema may take anything.
class SchemaOverlap {
 public:
  explicit SchemaOverlap(const OrderedJson& root) : root_(root) {}

  // The types (JsonType) of the values that may be valid for `schema`, which lies in `root`. A
  // number that is an integer has kIntegerType, and kNumberType is of all other numbers.
  unsigned TypesOf(const OrderedJson& schema) {
    Forget();
    const unsigned types = Types(schema, 0);
    Forget();  // another schema may be at the same place later
    return types;
  }

  // Whether no value is valid for both: they differ in type, in their values, or in the values of a
  // property that both require. They are parts of `root`.
  bool Disjoint(const OrderedJson& a, const OrderedJson& b) {
    const bool apart = Apart(a, b, 0);
    return apart && work_ <= kMaxWork;
  }

 private:
  // Schemas, values and names that are read, and pairs of values that are compared.
  static constexpr std::size_t kMaxWork = 400'000;

  bool Charge(std::size_t work) { return (work_ += work) <= kMaxWork; }
  // For names that are looked through, or bytes.
  bool ChargeNames(std::size_t names);
  void Forget() {
    types_.clear();
    next_.clear();
  }
  // What a schema is after its references, and after one of them.
  const OrderedJson& Target(const OrderedJson& schema);
  const OrderedJson& Next(const OrderedJson& schema);
  unsigned Types(const OrderedJson& schema, int steps);
  unsigned TypesOfTarget(const OrderedJson& target, int steps);
  bool Apart(const OrderedJson& a, const OrderedJson& b, int steps);
  bool Requires(const OrderedJson& schema, std::string_view name);
  // Whether the values are the same in JSON Schema, where 1 equals 1.0 and members have no order.
  // Beyond the bound all are.
  bool MayBeSame(const OrderedJson& a, const OrderedJson& b);

  const OrderedJson& root_;
  std::size_t work_ = 0;
  absl::flat_hash_map<std::pair<const OrderedJson*, int>, unsigned> types_;  // by schema and steps
  absl::flat_hash_map<const OrderedJson*, const OrderedJson*> next_;
};

// The type of a value, kIntegerType for each whole number.
unsigned TypeOfValue(const OrderedJson& value);

}  // namespace flotilla::router
