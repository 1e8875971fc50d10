// Each number among the keys of a GGUF file, replaced by one that no model has: the refusal names
// the key, and the value or the type that it has not.
#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/tiny_case.h"

namespace flotilla::model {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::GgufManifest;
using ::testing::HasSubstr;

// GGUF's types of four bytes.
enum class NumberType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6 };

struct HostileNumber {
  NumberType type;
  uint32_t bits;
  const char* stated;
};
constexpr HostileNumber kNumbers[] = {
    {NumberType::kInt32, 0xffffffff, "non-negative"},
    {NumberType::kUint32, 0xffffffff, "4294967295"},
    {NumberType::kFloat32, 0xff7fffff, "-3.40282e+38"},
    {NumberType::kFloat32, 0x7f7fffff, "3.40282e+38"},
    {NumberType::kFloat32, 0x7f800000, "inf"},
    {NumberType::kFloat32, 0x7fc00000, "nan"},
};

// A file whose numbers are replaced in place.
class ChangingGguf {
 public:
  explicit ChangingGguf(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  // Why the model is refused with the number at `key`; empty: it is not.
  std::string Refusal(const std::string& key, const HostileNumber& number) {
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
    // The key with its length in front, then the type and the value.
    const uint64_t length = key.size();
    const std::string head = std::string(reinterpret_cast<const char*>(&length), 8) + key;
    const size_t at = text.find(head);
    EXPECT_NE(at, std::string_view::npos) << key;
    if (at == std::string_view::npos) return "";
    std::vector<std::byte> changed = bytes_;
    std::memcpy(&changed[at + head.size()], &number.type, 4);
    std::memcpy(&changed[at + head.size() + 4], &number.bits, 4);
    const auto file = ParseCheckpoint(changed);
    if (!file.ok()) return std::string(file.status().message());
    const auto spec = LoadSpec(**file);
    return spec.ok() ? "" : std::string(spec.status().message());
  }

 private:
  const std::vector<std::byte> bytes_;
};

TEST(HostileGgufKeysTest, EachNumberIsRefusedByName) {
  std::set<std::string> read;
  for (const std::string& name : testing::CaseNames("tiny")) {
    const auto manifest = testing::ReadGgufManifest("tests/data/tiny/" + name);
    if (!manifest.has_value()) continue;  // llama.cpp does not know it
    const testing::TinyCase tiny = testing::ReadTinyCase("tiny/" + name);
    ASSERT_NE(tiny.file, nullptr);
    ChangingGguf model(testing::GgufTwin(*tiny.file, *manifest));
    for (const GgufManifest::Key& key : manifest->keys) {
      if (key.type != "uint32" && key.type != "float32") continue;
      SCOPED_TRACE(absl::StrCat(name, ", ", key.name));
      // A key is read if some number is refused there, and then all are.
      std::vector<std::string> refusals;
      for (const HostileNumber& number : kNumbers) {
        refusals.push_back(model.Refusal(key.name, number));
      }
      if (std::ranges::all_of(refusals, &std::string::empty)) continue;
      read.insert(key.name.substr(key.name.find('.') + 1));
      for (size_t i = 0; i < refusals.size(); ++i) {
        EXPECT_THAT(refusals[i], AllOf(HasSubstr(key.name),
                                       AnyOf(AllOf(HasSubstr(kNumbers[i].stated), HasSubstr("..")),
                                             HasSubstr("is not a"), HasSubstr("is not supported"))))
            << kNumbers[i].stated;
      }
    }
  }
  for (const char* key :
       {"block_count", "embedding_length", "attention.head_count", "attention.key_length",
        "attention.layer_norm_rms_epsilon", "rope.freq_base", "attention.sliding_window",
        "attention.kv_lora_rank", "expert_used_count", "final_logit_softcapping", "logit_scale"}) {
    EXPECT_TRUE(read.contains(key)) << key;
  }
  EXPECT_GE(read.size(), 25u);
}

}  // namespace
}  // namespace flotilla::model
