#include "model/tokenizer_file.h"

#include <cstdint>
#include <map>
#include <string_view>

namespace flotilla::model {
namespace {

// GGUF is little-endian, as is every machine that this code runs on.
template <class Number>
void Append(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void Append(std::string& out, std::span<const std::byte> bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void AppendString(std::string& out, std::string_view text) {
  Append(out, uint64_t{text.size()});
  out.append(text);
}

}  // namespace

std::string TokenizerFile(const GgufFile& file) {
  std::map<std::string_view, const GgufValue*> values;
  for (const auto& [key, value] : file.values()) {
    if (key.starts_with("tokenizer.")) values.emplace(key, &value);
  }
  std::string out = "GGUF";
  Append(out, uint32_t{3});
  Append(out, uint64_t{0});  // tensors
  Append(out, uint64_t{values.size()});
  for (const auto& [key, value] : values) {
    AppendString(out, key);
    Append(out, static_cast<uint32_t>(value->type));
    if (value->type == GgufType::kArray) {
      Append(out, static_cast<uint32_t>(value->element_type));
      Append(out, value->count);
    } else if (value->type == GgufType::kString) {
      Append(out, uint64_t{value->bytes.size()});
    }
    Append(out, value->bytes);
  }
  return out;
}

}  // namespace flotilla::model
