#include "model/huggingface/json_file.h"

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
  explicit Builder(size_t depth) : max_depth_(depth) {}

  Json root;
  std::string problem;

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // text has none
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [member, is_new] = members.try_emplace(std::move(name));
    member_ = &member->second;
    if (is_new) return true;
    problem = Cat("key '", absl::CHexEscape(member->first.substr(0, 80)), "' appears twice");
    return false;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    problem = Cat("no valid JSON at byte ", position);
    return false;
  }

 private:
  Json* Place(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<Json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (open_.size() >= max_depth_) {
      problem = Cat("nested more than ", max_depth_, " deep");
      return false;
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const size_t max_depth_;
  // The containers that have not ended. None of them moves: the last one is the only one that
  // grows.
  std::vector<Json*> open_;
  Json* member_ = nullptr;
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

absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::string_view what,
                                     const JsonBounds& bounds) {
  Builder builder(bounds.depth);
  if (text.size() > bounds.bytes) {
    return InvalidArgument(what, " has more than ", bounds.bytes, " bytes");
  }
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument(what, ": ", builder.problem);
  }
  if (!builder.root.is_object()) return InvalidArgument(what, " is no JSON object");
  return std::move(builder.root);
}

}  // namespace flotilla::model
