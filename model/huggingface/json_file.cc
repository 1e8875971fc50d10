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
  Builder(std::string_view text, size_t depth, size_t memory)
      : text_(text), max_depth_(depth), max_memory_(memory) {}

  Json root;
  std::string problem;

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override {
    memory_ += sizeof value + value.size();
    return Add(std::move(value));
  }
  bool binary(Json::binary_t&) override { return false; }  // text has none
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    memory_ += kMemberBytes + name.size();
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
  // A node of std::map: three pointers and a colour in front of the key and the value.
  static constexpr size_t kMemberBytes = 4 * sizeof(void*) + sizeof(Json::object_t::value_type);
  // A value in a list, which has room for as many again when it has grown.
  static constexpr size_t kElementBytes = 2 * sizeof(Json);

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
  bool Add(Json value) {
    Place(std::move(value));
    return Fits();
  }
  bool Fits() {
    if (memory_ > max_memory_) problem = Cat("its values take more than ", max_memory_, " bytes");
    return problem.empty();
  }
  bool Open(Json value) {
    if (open_.size() >= max_depth_) {
      problem = Cat("nested more than ", max_depth_, " deep");
      return false;
    }
    memory_ += sizeof(Json::object_t);
    open_.push_back(Place(std::move(value)));
    return Fits();
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::string_view text_;
  const size_t max_depth_, max_memory_;
  size_t memory_ = 0;  // that the values take, about
  // The containers that have not ended. None of them moves: the last one is the only one that
  // grows.
  std::vector<Json*> open_;
  Json* member_ = nullptr;
  const std::string* key_ = nullptr;  // the last one
};

}  // namespace

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
                                     const JsonBounds& bounds) {
  if (text.size() > bounds.bytes) {
    return InvalidArgument(what, " has more than ", bounds.bytes, " bytes");
  }
  if (HasEndlessNumber(text)) return InvalidArgument(what, " has a number without an end");
  // Small values take twenty times their text. The merges of a large vocabulary, each a list of two
  // strings, take eight times theirs where nothing is indented: 130 MiB for half a million.
  Builder builder(text, bounds.depth, 4 * text.size() + (64 << 20));
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument(what, ": ", builder.problem);
  }
  if (!builder.root.is_object()) return InvalidArgument(what, " is no JSON object");
  return std::move(builder.root);
}

}  // namespace flotilla::model
