// Strict reading of a JSON document: exact types, and every member accounted for by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "router/http/json_document.h"

namespace flotilla::router {

// The most names of ignored members that are kept. The header that lists them shows fewer.
inline constexpr std::size_t kMaxIgnored = 512;

// Reads the members of one object. The first error is kept, and values read after it do not
// matter. A member that is null counts as absent.
//
//   ObjectReader reader(body, "");
//   auto seed = reader.Int("seed");
//   reader.UnsupportedUnless("n", {1});        // any other value: unsupported
//   reader.Ignored({"user", "store"});
//   absl::Status status = reader.Finish(/*permissive=*/false, nullptr);
class ObjectReader {
 public:
  // `object` outlives the reader. `path` prefixes names in errors: "" or e.g.
  // "messages[2].".
  ObjectReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  std::optional<bool> Bool(std::string_view name);
  // A JSON integer that fits; 1.0 and "1" are not.
  std::optional<std::int64_t> Int(std::string_view name);
  // Reads any 64-bit integer, negative ones as their two's complement.
  std::optional<std::uint64_t> Seed(std::string_view name);
  std::optional<double> Number(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  // A member of any type; null pointer when absent or null.
  const Json* Value(std::string_view name);

  // For a feature that this server does not have: only the given values (which mean "off") pass.
  void UnsupportedUnless(std::string_view name, std::span<const Json> off);
  void UnsupportedUnless(std::string_view name, std::initializer_list<Json> off) {
    UnsupportedUnless(name, std::span(off.begin(), off.size()));
  }
  // For members that have no effect here: any value passes.
  void Ignored(std::initializer_list<std::string_view> names);

  void Fail(absl::Status status);
  // INVALID_ARGUMENT about member `name`.
  void FailField(std::string_view name, std::string_view what);
  // The same as FailField, with the code kUnsupportedField.
  void Unsupported(std::string_view name, std::string_view what);
  bool ok() const { return status_.ok(); }

  // The first error, or, unless permissive, one that names an unknown member. If permissive,
  // the names of unknown members are appended to `ignored` until it has kMaxIgnored.
  absl::Status Finish(bool permissive, std::vector<std::string>* ignored);

 private:
  void WrongType(std::string_view name, std::string_view expected);

  const Json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> seen_;
  absl::Status status_;
};

}  // namespace flotilla::router
