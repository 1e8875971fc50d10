#include "router/core/constraint/ordered_json.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/types/text.h"

namespace flotilla::router {
namespace {

// Builds the document from the events of nlohmann's SAX parser. An object is a vector, and a key
// is only appended: the library's own builder looks through all keys for each one.
class Builder {
 public:
  // `names` may be null: everything is kept.
  explicit Builder(const std::vector<std::string_view>* names) : names_(names) {}

  // The events. False ends the parse.
  bool null() { return Scalar(nullptr); }
  bool boolean(bool value) { return Scalar(value); }
  bool number_integer(std::int64_t value) { return Scalar(value); }
  bool number_unsigned(std::uint64_t value) { return Scalar(value); }
  bool number_float(double value, const std::string& text) {
    const bool whole = text.find_first_of(".eE") == std::string::npos;
    return whole ? Refuse("has a whole number that 64 bits do not hold") : Scalar(value);
  }
  bool string(std::string& value) { return Scalar(std::move(value)); }
  bool binary(OrderedJson::binary_t&) { return false; }  // text has none
  bool start_object(std::size_t) { return Open(OrderedJson::object()); }
  bool start_array(std::size_t) { return Open(OrderedJson::array()); }
  bool end_array() { return Close(); }
  bool end_object() {
    if (skipped_ == 0) {
      std::vector<std::string_view> keys;
      for (const auto& [key, value] : open_.back()->get_ref<OrderedJson::object_t&>()) {
        keys.push_back(key);
      }
      std::sort(keys.begin(), keys.end());
      const auto twice = std::adjacent_find(keys.begin(), keys.end());
      if (twice != keys.end())
        return Refuse(Cat("has the key '", twice->substr(0, 100), "' twice"));
    }
    return Close();
  }
  bool key(std::string& name) {
    if (skipped_ > 0) return true;
    skip_next_ = names_ != nullptr && open_.size() == 1 &&
                 std::find(names_->begin(), names_->end(), name) == names_->end();
    if (skip_next_) return true;
    auto& members = open_.back()->get_ref<OrderedJson::object_t&>();
    members.emplace_back(std::move(name), OrderedJson());
    member_ = &members.back().second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const OrderedJson::exception&) {
    return Refuse(Cat("is not JSON: syntax error at byte ", position));
  }

  absl::StatusOr<OrderedJson> Result() && {
    if (!status_.ok()) return std::move(status_);
    return std::move(root_);
  }

 private:
  bool Refuse(std::string_view what) {
    status_ = InvalidArgument(what);
    return false;
  }
  bool Skips() {
    if (skipped_ == 0 && !skip_next_) return false;
    skip_next_ = false;
    return true;
  }
  bool Scalar(OrderedJson value) { return Skips() || Add(std::move(value)) != nullptr; }
  OrderedJson* Add(OrderedJson value) {
    if (++values_ > kMaxOrderedValues) {
      Refuse(Cat("has more than ", kMaxOrderedValues, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    return &open_.back()->get_ref<OrderedJson::array_t&>().emplace_back(std::move(value));
  }
  bool Open(OrderedJson container) {
    if (Skips()) {
      ++skipped_;
      return true;
    }
    if (open_.size() == kMaxOrderedDepth) {
      return Refuse(Cat("is nested deeper than ", kMaxOrderedDepth));
    }
    OrderedJson* const opened = Add(std::move(container));
    if (opened == nullptr) return false;
    open_.push_back(opened);  // stays where it is: nothing is added beside it until it closes
    return true;
  }
  bool Close() {
    skipped_ > 0 ? static_cast<void>(--skipped_) : open_.pop_back();
    return true;
  }

  const std::vector<std::string_view>* const names_;
  OrderedJson root_;
  std::vector<OrderedJson*> open_;  // the containers around the place, the root first
  OrderedJson* member_ = nullptr;   // the value that the last key names
  bool skip_next_ = false;          // the value of the last key is not kept
  int skipped_ = 0;                 // containers around the place that are not kept
  std::size_t values_ = 0;
  absl::Status status_;
};

absl::StatusOr<OrderedJson> Parse(std::string_view text,
                                  const std::vector<std::string_view>* names) {
  Builder builder(names);
  OrderedJson::sax_parse(text.data(), text.data() + text.size(), &builder);
  return std::move(builder).Result();
}

}  // namespace

absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text) { return Parse(text, nullptr); }

absl::StatusOr<OrderedJson> ParseOrderedMembers(std::string_view text,
                                                const std::vector<std::string_view>& names) {
  return Parse(text, &names);
}

const OrderedJson* Find(const OrderedJson& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  for (const auto& [key, value] : object.get_ref<const OrderedJson::object_t&>()) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace flotilla::router
