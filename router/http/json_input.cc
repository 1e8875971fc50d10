#include "router/http/json_input.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/types/text.h"
#include "router/errors.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

// The client's text as messages show it: valid UTF-8, and bounded.
std::string Shown(std::string_view text) { return RepairUtf8(text.substr(0, 100)); }

}  // namespace

const Json* ObjectReader::Value(std::string_view name) {
  seen_.emplace(name);
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> ObjectReader::Bool(std::string_view name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  WrongType(name, "true or false");
  return std::nullopt;
}

std::optional<std::int64_t> ObjectReader::Int(std::string_view name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  // An integer that no 64 bits hold is a double here.
  const double real = value->is_number_float() ? value->get<double>() : 0;
  const bool above = value->is_number_unsigned() &&
                     value->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
  if (above || real >= 0x1p63 || real < -0x1p63) {
    FailField(name, real < 0 ? "is too small" : "is too large");
    return std::nullopt;
  }
  if (value->is_number_integer()) return value->get<std::int64_t>();
  WrongType(name, "an integer");
  return std::nullopt;
}

std::optional<std::uint64_t> ObjectReader::Seed(std::string_view name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value->is_number_integer()) return static_cast<std::uint64_t>(value->get<std::int64_t>());
  WrongType(name, "a 64-bit integer");
  return std::nullopt;
}

std::optional<double> ObjectReader::Number(std::string_view name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  WrongType(name, "a number");
  return std::nullopt;
}

std::optional<std::string> ObjectReader::String(std::string_view name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  WrongType(name, "a string");
  return std::nullopt;
}

void ObjectReader::UnsupportedUnless(std::string_view name, std::span<const Json> off) {
  const Json* value = Value(name);
  if (value == nullptr) return;
  if (std::find(off.begin(), off.end(), *value) != off.end()) return;
  Unsupported(name, off.empty() ? "is not supported"
                                : Cat("is not supported, except as ", off.front().dump()));
}

void ObjectReader::Ignored(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) seen_.emplace(name);
}

void ObjectReader::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ObjectReader::FailField(std::string_view name, std::string_view what) {
  Fail(InvalidField(Cat(path_, name), Cat("'", path_, name, "' ", what)));
}

void ObjectReader::Unsupported(std::string_view name, std::string_view what) {
  Fail(WithField(InvalidArgument("'", path_, name, "' ", what), Cat(path_, name),
                 kUnsupportedField));
}

void ObjectReader::WrongType(std::string_view name, std::string_view expected) {
  FailField(name, Cat("must be ", expected));
}

absl::Status ObjectReader::Finish(bool permissive, std::vector<std::string>* ignored) {
  if (!status_.ok()) return status_;
  for (const auto& member : object_.items()) {
    // Clients send members of newer APIs back as null, which asks for nothing.
    if (seen_.contains(member.key()) || member.value().is_null()) continue;
    const std::string name = path_ + Shown(member.key());
    if (!permissive) {
      return WithField(InvalidArgument("unknown field '", name, "'"), name, kUnknownField);
    }
    if (ignored->size() < kMaxIgnored) ignored->push_back(name);
  }
  return absl::OkStatus();
}

}  // namespace flotilla::router
