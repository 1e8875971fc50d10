// A worker group says once which tensors of its model it does not use, and which it unpacks.
#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/skipped_tensors.h"
#include "cli/worker_group.h"
#include "common/rt/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/load_spec.h"
#include "nlohmann/json.hpp"
#include "tests/support/hf_folder.h"
#include "tests/support/log_lines.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

// The lines about skipped tensors that a worker group of the model writes.
std::vector<std::string> LinesAbout(const std::string& model) {
  const SteadyClock clock;
  testing::LogLines log;
  RoleFlags flags;
  flags.model = model;
  flags.launcher = "none";
  const auto group = WorkerGroup::Create(flags, &clock, &log.logger());
  EXPECT_TRUE(group.ok()) << group.status();
  return log.With("not used for text");
}

TEST(SkippedTensors, AreLoggedOnceByPrefix) {
  const testing::ScratchDirectory scratch;
  const std::string folder = scratch.path() + "/tiny";
  const std::vector<std::byte> bytes = testing::TinyGguf();
  const auto llama = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(llama.ok()) << llama.status();
  testing::WriteLlamaFolder(**llama, folder);
  EXPECT_TRUE(LinesAbout(folder).empty());
  const Json config = {{"model_type", "llava"}, {"text_config", ReadJson(folder + "/config.json")}};
  testing::WriteFile(folder + "/config.json", config.dump());
  const std::string data(8, 'x');
  testing::WriteFile(folder + "/more.safetensors",
                     testing::Safetensors({{"vision_tower.a", "F32", {2}, data},
                                           {"vision_tower.b", "F32", {2}, data},
                                           {"multi_modal_projector.a", "F32", {2}, data}}));
  Json index = ReadJson(folder + "/model.safetensors.index.json");
  for (const char* name : {"vision_tower.a", "vision_tower.b", "multi_modal_projector.a"}) {
    index["weight_map"][name] = "more.safetensors";
  }
  testing::WriteFile(folder + "/model.safetensors.index.json", index.dump());
  EXPECT_THAT(LinesAbout(folder),
              ElementsAre(HasSubstr("tensors are not used for text tensors=3 prefixes="
                                    "\"vision_tower. (2, 0.0 MB), "
                                    "multi_modal_projector. (1, 0.0 MB)\"")));
}

TEST(UnpackedExperts, AreLoggedOnce) {
  const auto lines = [](const char* format) {
    const testing::ScratchDirectory folder;
    testing::WriteQuantisedFolder("tests/data/tiny/mixtral", {.name = "", .formats = {format}},
                                  /*seed=*/1, folder.path());
    const auto file = model::OpenCheckpoint(folder.path());
    EXPECT_TRUE(file.ok()) << file.status();
    testing::LogLines log;
    LogTensors(**file, kernels::KvFormat::kBf16, log.logger());
    return log.lines();
  };
  EXPECT_THAT(
      lines("gptq_own_order"),
      ElementsAre(HasSubstr("experts are unpacked to fp32, since their gate and up matrices "
                            "differ in format or order experts=12 file_mb=0 memory_mb=0")));
  EXPECT_THAT(lines("gptq_order"), ::testing::IsEmpty());
}

TEST(KvScales, AreLoggedOnceWhereAnyLayerUsesThem) {
  using enum kernels::KvType;
  const std::vector<std::byte> bytes = testing::TinyGguf();
  const auto file = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  auto spec = model::LoadSpec(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->layers.size(), 2u);
  const auto lines = [&](const worker::KvFormats& kv) {
    testing::LogLines log;
    LogKvScales(*spec, kv, log.logger());
    return log.lines();
  };
  EXPECT_THAT(lines(kernels::KvFormat::Both(kFp8)), ::testing::IsEmpty());
  spec->kv_scales = {{.key = 0.5f}, {.key = 0.5f, .value = 0.25f}};
  const auto says = [](int layers) {
    return ElementsAre(
        HasSubstr(absl::StrCat("K and V in FP8 have the scales of the file layers=", layers)));
  };
  EXPECT_THAT(lines(kernels::KvFormat::Both(kFp8)), says(2));
  EXPECT_THAT(lines(kernels::KvFormat{kInt8, kFp8}), says(1));
  EXPECT_THAT(lines(kernels::KvFormat::Both(kInt8)), ::testing::IsEmpty());
}

}  // namespace
}  // namespace flotilla::cli
