#include "router/http/json_input.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "model/text.h"
#include "router/errors.h"
#include "router/utf8.h"

namespace flotilla {
namespace {

// Client text in a message: bounded.
std::string Shown(std::string_view text) { return RepairUtf8(text.substr(0, 100)); }

// Thrown by the parser's callback, caught in ParseJsonObject: the library has no
// other way to stop early.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Watches a parse for depth and duplicate keys.
class Guard {
 public:
  bool operator()(Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        Enter();
        keys_.emplace_back();
        break;
      case Json::parse_event_t::array_start:
        Enter();
        break;
      case Json::parse_event_t::object_end:
        keys_.pop_back();
        [[fallthrough]];
      case Json::parse_event_t::array_end:
        --depth_;
        break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) throw Refused("duplicate key '" + Shown(key) + "'");
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  void Enter() {
    if (++depth_ > kMaxJsonDepth) throw Refused(Cat("nested deeper than ", kMaxJsonDepth));
  }

  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;
};

absl::Status BadBody(std::string_view what) {
  return WithField(InvalidArgument("the request body is not a JSON object: ", what), "",
                   "invalid_json");
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view body) {
  try {
    Guard guard;
    Json value = Json::parse(
        body.begin(), body.end(),
        [&guard](int, Json::parse_event_t event, Json& parsed) { return guard(event, parsed); });
    if (!value.is_object()) return BadBody("it is of another type");
    return value;
  } catch (const Json::parse_error& error) {
    return BadBody(Cat("syntax error at byte ", error.byte));
  } catch (const Json::exception&) {
    return BadBody("a number is out of range");
  } catch (const Refused& refused) {
    return BadBody(refused.what());
  }
}

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
  if (value->is_number_unsigned() &&
      value->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    FailField(name, "is too large");
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

void ObjectReader::Neutral(std::string_view name, std::initializer_list<Json> off) {
  const Json* value = Value(name);
  if (value == nullptr) return;
  if (std::find(off.begin(), off.end(), *value) != off.end()) return;
  std::string message = Cat("'", path_, name, "' is not supported");
  if (off.size() > 0) message += Cat(", except as ", off.begin()->dump());
  Fail(WithField(absl::InvalidArgumentError(message), Cat(path_, name), kUnsupportedField));
}

void ObjectReader::Inert(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) seen_.emplace(name);
}

void ObjectReader::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ObjectReader::FailField(std::string_view name, std::string_view what) {
  Fail(InvalidField(Cat(path_, name), Cat("'", path_, name, "' ", what)));
}

void ObjectReader::WrongType(std::string_view name, std::string_view expected) {
  FailField(name, Cat("must be ", expected));
}

absl::Status ObjectReader::Finish(bool lenient, std::vector<std::string>* ignored) {
  if (!status_.ok()) return status_;
  for (const auto& member : object_.items()) {
    if (seen_.contains(member.key())) continue;
    const std::string name = path_ + Shown(member.key());
    if (!lenient) {
      return WithField(InvalidArgument("unknown field '", name, "'"), name, kUnknownField);
    }
    ignored->push_back(name);
  }
  return absl::OkStatus();
}

}  // namespace flotilla
