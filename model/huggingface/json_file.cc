#include "model/huggingface/json_file.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/types/text.h"
#include "model/mapped_file.h"

namespace flotilla::model {
namespace {

// Builds a document from the parser's events, which keep no stack of calls. Unlike the library's
// own builder it refuses depth and repeated keys.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, size_t depth, size_t memory, MergeList* merges)
      : text_(text), max_depth_(depth), max_memory_(memory), merges_(merges) {}
  ~Builder() override { FreeJson(root); }

  Json root;
  std::string problem;

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override {
    if (merge_depth_ > 0) return AddMerge(value);
    memory_ += kAllocation + BytesOf(value);
    return Add(std::move(value));
  }
  bool binary(Json::binary_t&) override { return false; }  // text has none
  bool start_object(size_t) override {
    return merge_depth_ > 0 ? OpenInMerges(/*is_list=*/false) : Open(Json::object());
  }
  bool start_array(size_t) override {
    if (merge_depth_ > 0) return OpenInMerges(/*is_list=*/true);
    // The containers around it are the root and "model".
    const bool is_merges = merges_ != nullptr && open_.size() == 2 && in_model_ &&
                           open_.back()->is_object() && *key_ == "merges";
    if (!Open(Json::array())) return false;
    if (is_merges) merge_depth_ = 1;
    return true;
  }
  bool end_object() override { return merge_depth_ > 1 ? CloseInMerges() : Close(); }
  bool end_array() override { return merge_depth_ > 1 ? CloseInMerges() : Close(); }
  bool key(std::string& name) override {
    if (merge_depth_ > 0) return true;
    if (open_.size() == 1) in_model_ = name == "model";
    auto& members = open_.back()->get_ref<Json::object_t&>();
    memory_ += kMemberBytes + BytesOf(name) - sizeof name;
    const auto [member, is_new] = members.try_emplace(std::move(name));
    member_ = &member->second;
    key_ = &member->first;
    if (is_new) return true;
    problem = Cat("key '", absl::CHexEscape(member->first.substr(0, 80)), "' appears twice");
    return false;
  }
  bool parse_error(size_t position, const std::string& token,
                   const Json::exception& error) override {
    constexpr int kOverflow = 406;  // of the library
    problem = Cat("no valid JSON at byte ", position);
    // Python writes such numbers. The position is that of the capital letter, counted from 1.
    const std::string_view rest =
        text_.substr(std::min(text_.size(), position - std::min(position, size_t{1})));
    const bool negative = position >= 2 && text_[position - 2] == '-';
    for (const std::string_view number : {"NaN", "Infinity"}) {
      if (rest.starts_with(number)) problem = NoNumber(negative ? "-" : "", number);
    }
    if (error.id == kOverflow) problem = NoNumber("", std::string_view(token).substr(0, 40));
    return false;
  }

 private:
  static constexpr int kNoRule = 3;          // merge_parts_ of what is none
  static constexpr size_t kAllocation = 16;  // what malloc adds and rounds up to
  // A node of std::map: three pointers and a colour in front of the key and the value.
  static constexpr size_t kMemberBytes =
      kAllocation + 4 * sizeof(void*) + sizeof(Json::object_t::value_type);
  // A value in a list, which has room for as many again while it grows, and then frees the room
  // that it had.
  static constexpr size_t kElementBytes = 3 * sizeof(Json);

  // With what it allocates.
  static size_t BytesOf(const std::string& text) {
    const bool is_short = text.size() <= std::string().capacity();
    return sizeof text + (is_short ? 0 : kAllocation + text.size());
  }

  std::string NoNumber(std::string_view sign, std::string_view number) const {
    const std::string_view key = key_ == nullptr ? std::string_view() : *key_;
    return Cat(absl::CHexEscape(ToAbsl(key.substr(0, 80))), " = ", sign, number,
               " is no finite number");
  }

  Json* Place(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (open_.back()->is_array()) {
      memory_ += kElementBytes;
      auto& elements = open_.back()->get_ref<Json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  // A rule that is one string, or a part of the one that is a list.
  bool AddMerge(const std::string& text) {
    if (merge_depth_ == 1) return TakeMerge(text);
    if (++merge_parts_ > 2) return true;
    if (merge_parts_ == 2) merge_ += ' ';
    merge_ += text;
    return true;
  }
  bool OpenInMerges(bool is_list) {
    if (open_.size() + static_cast<size_t>(merge_depth_) > max_depth_) return TooDeep();
    if (merge_depth_ == 1) merge_.clear();
    merge_parts_ = merge_depth_ == 1 && is_list ? 0 : kNoRule;
    ++merge_depth_;
    return true;
  }
  bool CloseInMerges() {
    if (--merge_depth_ > 1) return true;
    return merge_parts_ == 2 ? TakeMerge(merge_) : WrongMerge();
  }
  bool TakeMerge(const std::string& rule) {
    if (merges_->rules.size() == MergeList::kMost) {
      problem = Cat("model.merges has more than ", MergeList::kMost, " rules");
      return false;
    }
    memory_ += 2 * sizeof rule + BytesOf(rule);  // as in a list that grows
    merges_->rules.push_back(rule);
    return Fits();
  }
  bool WrongMerge() {
    if (!merges_->wrong.has_value()) merges_->wrong = merges_->rules.size();
    return true;
  }

  bool Add(Json value) {
    if (merge_depth_ > 1) merge_parts_ = kNoRule;
    if (merge_depth_ > 0) return merge_depth_ > 1 || WrongMerge();
    Place(std::move(value));
    return Fits();
  }
  bool Fits() {
    if (memory_ > max_memory_) problem = Cat("its values take more than ", max_memory_, " bytes");
    return problem.empty();
  }
  bool TooDeep() {
    problem = Cat("nested more than ", max_depth_, " deep");
    return false;
  }
  bool Open(Json value) {
    if (open_.size() >= max_depth_) return TooDeep();
    memory_ += kAllocation + sizeof(Json::object_t);
    open_.push_back(Place(std::move(value)));
    return Fits();
  }
  bool Close() {
    merge_depth_ = 0;
    open_.pop_back();
    return true;
  }

  const std::string_view text_;
  const size_t max_depth_, max_memory_;
  size_t memory_ = 0;  // that the values take, about
  MergeList* const merges_;
  bool in_model_ = false;  // whether the last member of the root is "model"
  int merge_depth_ = 0;  // 1: in the list of rules; 2: in a rule that is a list, or in what is none
  int merge_parts_ = 0;  // strings of such a rule
  std::string merge_;
  // The containers that have not ended. None of them moves: the last one is the only one that
  // grows.
  std::vector<Json*> open_;
  Json* member_ = nullptr;
  const std::string* key_ = nullptr;  // the last one
};

}  // namespace

// NOLINTNEXTLINE(misc-no-recursion): the depth is that of a file, which has a bound.
const Json* Member(const Json* object, std::string_view name) {
  if (object == nullptr || !object->is_object() || name.empty()) return nullptr;
  const auto found = object->find(std::string(name));
  return found == object->end() || found->is_null() ? nullptr : &*found;
}

void FreeJson(Json& value) {
  for (Json& element : value) {
    if (element.is_structured()) FreeJson(element);
  }
  if (value.is_structured()) value.clear();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const std::span<const std::byte> bytes = (*file)->bytes();
  if (bytes.size() > max_bytes) {
    return InvalidArgument(path, " has ", bytes.size(), " bytes, not at most ", max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool HasEndlessNumber(std::string_view text) {
  constexpr size_t kMostDigits = 1 << 16;
  size_t digits = 0;
  for (const char c : text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > kMostDigits) return true;
  }
  return false;
}

absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::string_view what,
                                     const JsonBounds& bounds, MergeList* merges) {
  if (text.size() > bounds.bytes) {
    return InvalidArgument(what, " has more than ", bounds.bytes, " bytes");
  }
  if (HasEndlessNumber(text)) return InvalidArgument(what, " has a number without an end");
  // Small values take twenty times their text. The text is there, too.
  Builder builder(text, bounds.depth, 3 * text.size() + (64 << 20), merges);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument(what, ": ", builder.problem);
  }
  if (!builder.root.is_object()) return InvalidArgument(what, " is no JSON object");
  return std::move(builder.root);
}

}  // namespace flotilla::model
