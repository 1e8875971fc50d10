#include "router/http/json_document.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "model/text/utf8.h"
#include "router/errors.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

// The memory that the library takes for each kind of value, and that malloc takes besides it.
constexpr std::size_t kAllocation = 16;
constexpr std::size_t kElementBytes = sizeof(Json);
constexpr std::size_t kStringBytes = sizeof(std::string) + kAllocation;
constexpr std::size_t kArrayBytes = sizeof(Json::array_t) + kAllocation;
constexpr std::size_t kObjectBytes = sizeof(Json::object_t) + kAllocation;
// A node of a red-black tree: three pointers and a colour, and the pair.
constexpr std::size_t kMemberBytes = 32 + sizeof(Json::object_t::value_type) + kAllocation;

constexpr int kNumberOutOfRange = 406;  // the library's id of that error

// The most of a key that errors show.
constexpr std::size_t kShownKeyBytes = 100;

// `field`: the member of the body that is at fault; empty: none, or it is unknown.
absl::Status BadBody(std::string_view what, std::string_view field = "") {
  return WithField(InvalidArgument("the request body is not a JSON object: ", what), field,
                   "invalid_json");
}

// Builds the document from the events of nlohmann's SAX parser, which keeps its state on
// the heap. Its own document builder knows no bounds, and with a callback it walks all
// earlier siblings after every container.
class Builder {
 public:
  Builder(std::string_view body, const ListBound* bound) : body_(body), bound_(bound) {}

  // The events. False ends the parse.
  bool null() { return Scalar(nullptr); }
  bool boolean(bool value) { return Scalar(value); }
  bool number_integer(std::int64_t value) { return Scalar(value); }
  bool number_unsigned(std::uint64_t value) { return Scalar(value); }
  bool number_float(double value, const std::string&) { return Scalar(value); }
  bool string(std::string& value) { return Take(kStringBytes) && Scalar(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // text has none
  bool start_object(std::size_t) { return Take(kObjectBytes) && Open(Json::object()); }
  bool start_array(std::size_t) { return Take(kArrayBytes) && Open(Json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    if (!Take(kMemberBytes)) return false;
    key_is_bound_ = bound_ != nullptr && open_.size() == 1 && name == bound_->name;
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto member = members.try_emplace(std::move(name));
    const auto shown = [&] { return RepairUtf8(member.first->first.substr(0, kShownKeyBytes)); };
    if (!member.second) return Refuse(BadBody(Cat("duplicate key '", shown(), "'")));
    member_ = &member.first->second;
    if (open_.size() == 1) field_ = shown();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    if (error.id == kNumberOutOfRange) {
      return Refuse(BadBody(Cat("a number is out of range", InField()), field_));
    }
    const std::size_t invalid = model::FindInvalidUtf8(body_);
    if (invalid < position) {
      return Refuse(
          WithField(InvalidArgument("the request body is not valid UTF-8 at byte ", invalid + 1),
                    "", "invalid_json"));
    }
    return Refuse(BadBody(Cat("syntax error at byte ", position, InField()), field_));
  }

  absl::StatusOr<JsonDocument> Result() && {
    if (!status_.ok()) return std::move(status_);
    return std::move(document_);
  }

 private:
  bool Refuse(absl::Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Take(std::size_t bytes) {
    bytes_ += bytes;
    if (bytes_ <= kMaxJsonBytes) return true;
    return Refuse(WithField(InvalidArgument("the request body has too many values: they would take "
                                            "more than ",
                                            kMaxJsonBytes >> 20, " MiB of memory"),
                            "", kInvalidValue));
  }
  bool Scalar(Json value) {
    if (Add(std::move(value)) == nullptr) return false;
    if (open_.size() == 1) field_.clear();
    return true;
  }
  std::string InField() const { return field_.empty() ? "" : Cat(", in '", field_, "'"); }

  // Puts the value where it belongs; null when it is refused.
  Json* Add(Json value) {
    if (open_.empty()) {
      if (!value.is_object()) {
        Refuse(BadBody("it is of another type"));
        return nullptr;
      }
      document_.root() = std::move(value);
      return &document_.root();
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& elements = open_.back()->get_ref<Json::array_t&>();
    if (open_.back() == bounded_ && elements.size() == bound_->max_elements) {
      Refuse(bound_->too_long);
      return nullptr;
    }
    if (!Take(kElementBytes)) return nullptr;
    return &elements.emplace_back(std::move(value));
  }
  bool Open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      return Refuse(BadBody(Cat("nested deeper than ", kMaxJsonDepth)));
    }
    Json* const opened = Add(std::move(container));
    if (opened == nullptr) return false;
    if (open_.size() == 1 && key_is_bound_) bounded_ = opened;
    open_.push_back(opened);  // stays where it is: nothing is added beside it until it closes
    return true;
  }
  bool Close() {
    open_.pop_back();
    if (open_.size() == 1) field_.clear();
    return true;
  }

  const std::string_view body_;
  const ListBound* const bound_;
  JsonDocument document_;
  std::vector<Json*> open_;        // the containers around the place, the root first
  Json* member_ = nullptr;         // the value that the last key names
  const Json* bounded_ = nullptr;  // the list that `bound_` is about, once it has begun
  std::string field_;              // the root's member whose value is being read
  bool key_is_bound_ = false;      // the last key in the root names it
  std::size_t bytes_ = 0;
  absl::Status status_;
};

// Empties `value`; nested kMaxJsonDepth deep at most.
void TakeApart(Json& value) {
  if (value.is_array()) {
    auto& list = value.get_ref<Json::array_t&>();
    for (Json& element : list) TakeApart(element);
    list.clear();
  } else if (value.is_object()) {
    auto& members = value.get_ref<Json::object_t&>();
    for (auto& [name, member] : members) TakeApart(member);
    members.clear();
  }
}

}  // namespace

JsonDocument::~JsonDocument() { TakeApart(root_); }

absl::StatusOr<JsonDocument> ParseJsonObject(std::string_view body, const ListBound* bound) {
  Builder builder(body, bound);
  Json::sax_parse(body.data(), body.data() + body.size(), &builder);
  return std::move(builder).Result();
}

}  // namespace flotilla::router
