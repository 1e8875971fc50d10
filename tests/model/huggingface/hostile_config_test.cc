// Each number of a config.json, replaced by one that no model has: the refusal names the file, the
// key, the value and, where it is a bound, the bound.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/huggingface/json_file.h"
#include "model/load_spec.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_case.h"

namespace flotilla::model {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Pointer = Json::json_pointer;

// A tiny case whose config.json can be replaced.
class ChangingFolder {
 public:
  explicit ChangingFolder(const std::string& tiny_case) {
    const testing::ScratchDirectory made;
    const std::filesystem::path from = testing::TinyCaseFolder(tiny_case, made.path());
    std::ifstream file(from / "config.json");
    config_ = Json::parse(file);
    std::filesystem::copy(from / "model.safetensors", scratch_.path() + "/model.safetensors");
  }
  const Json& config() const { return config_; }

  // Why the model is refused with `value` (in JSON's spelling) at `key`; empty: it is not.
  std::string Refusal(const Pointer& key, const std::string& value) const {
    Json changed = config_;
    changed[key] = kMark;
    std::string text = changed.dump();
    const std::string mark = absl::StrCat("\"", kMark, "\"");
    text.replace(text.find(mark), mark.size(), value);
    testing::WriteFile(scratch_.path() + "/config.json", text);
    const auto file = OpenCheckpoint(scratch_.path());
    if (!file.ok()) return std::string(file.status().message());
    const auto spec = LoadSpec(**file);
    return spec.ok() ? "" : std::string(spec.status().message());
  }

 private:
  static constexpr const char* kMark = "what the test puts here";
  testing::ScratchDirectory scratch_;
  Json config_;
};

// Where a configuration has numbers, also in the objects in it; of a list, the first and the last.
void FindNumbers(const Json& in, const Pointer& at, std::vector<Pointer>& out) {
  if (in.is_number()) return out.push_back(at);
  if (in.is_array() && !in.empty()) {
    FindNumbers(in.front(), at / 0, out);
    if (in.size() > 1) FindNumbers(in.back(), at / (in.size() - 1), out);
  }
  if (!in.is_object()) return;
  for (const auto& [key, value] : in.items()) FindNumbers(value, at / key, out);
}

// The last name in a path, which a list's index is none of.
std::string NameOf(const Pointer& at) {
  const std::string last = at.back();
  return absl::c_all_of(last, absl::ascii_isdigit) ? at.parent_pointer().back() : last;
}

struct Value {
  const char* json;
  const char* stated;
  const char* real;  // where it is read as a real number
};
constexpr Value kValues[] = {
    {"-1", "-1", "-1"},
    {"4294967295", "4294967295", "4.29497e+09"},
    {"9223372036854775808", "9223372036854775808", "9.22337e+18"},
    {"1e300", "1e+300", "1e+300"},
    {"1e400", "1e400", "1e400"},
    {"NaN", "NaN", "NaN"},
};

TEST(HostileConfigTest, EachNumberIsRefusedByName) {
  std::set<std::string> read;
  for (const std::string& tiny_case : testing::AllTinyCases()) {
    const bool made = tiny_case.starts_with("made/");
    const ChangingFolder model(tiny_case);
    const std::set<std::string> before = read;
    std::vector<Pointer> numbers;
    FindNumbers(model.config(), Pointer(), numbers);
    for (const Pointer& at : numbers) {
      SCOPED_TRACE(tiny_case + at.to_string());
      const std::string name = NameOf(at);
      if (made && before.contains(name)) continue;  // most have the keys of those of other weights
      // A key is read if a string is refused there.
      const std::string mistyped = model.Refusal(at, "\"x\"");
      if (mistyped.empty()) continue;
      read.insert(name);
      EXPECT_THAT(mistyped, HasSubstr("config.json"));
      EXPECT_THAT(mistyped, HasSubstr(name));
      for (const auto& [value, stated, real] : kValues) {
        const std::string refusal = model.Refusal(at, value);
        if (refusal.empty() && value == std::string_view("4294967295")) {
          // A real number may be as large.
          EXPECT_THAT(model.Refusal(at, "1.5"), Not(HasSubstr("is not a non-negative integer")));
          continue;
        }
        EXPECT_THAT(refusal, HasSubstr("config.json")) << value;
        EXPECT_THAT(refusal, HasSubstr(name)) << value;
        EXPECT_THAT(refusal, AnyOf(HasSubstr(stated), HasSubstr(real)));
        EXPECT_THAT(refusal, AnyOf(HasSubstr(".."), HasSubstr("is no finite number"),
                                   HasSubstr("is not a non-negative integer"),
                                   HasSubstr("is not above 0 and up to 1")));
      }
    }
  }
  for (const char* name :
       {"hidden_size", "n_embd", "num_hidden_layers", "head_dim", "vocab_size", "rms_norm_eps",
        "rope_theta", "sliding_window", "kv_lora_rank", "num_experts_per_tok",
        "final_logit_softcapping", "n_group", "shared_expert_intermediate_size", "long_factor"}) {
    EXPECT_TRUE(read.contains(name)) << name;
  }
  EXPECT_GE(read.size(), 50u);
}

}  // namespace
}  // namespace flotilla::model
