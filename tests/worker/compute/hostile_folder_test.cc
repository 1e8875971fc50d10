// Hugging Face folders of every architecture whose config.json is wrong somewhere: each is refused,
// or computes something.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/rt/clock.h"
#include "model/kv_groups.h"
#include "model/load_spec.h"
#include "tests/support/random.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_case.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/decoder/decoder.h"

namespace flotilla::worker {
namespace {

using Json = nlohmann::ordered_json;
using testing::Random;

constexpr std::uint64_t kFolderSeed = 20261125;

// Of each case. Those whose weights are made have mostly the keys of the others.
int Mutations(const std::string& tiny_case) {
  const int all = std::getenv("FLOTILLA_LONG") != nullptr ? 5'000 : 200;
  return tiny_case.starts_with("made/") ? all / 5 : all;
}

Json Extreme(const Json& before, Random& random) {
  const Json values[] = {0,
                         1,
                         -1,
                         3,
                         7,
                         31,
                         33,
                         64.5,
                         1e300,
                         1 << 20,
                         1ll << 40,
                         "silu",
                         true,
                         nullptr,
                         Json::array(),
                         Json::array({1, 2, 3}),
                         Json::object(),
                         -0.0};
  if (before.is_number_integer() && random.Int(0, 2) == 0) {
    const auto number = before.get<std::int64_t>();
    const std::int64_t near[] = {number + 1, number - 1, number * 2, number / 2};
    return near[random.Int(0, 3)];
  }
  return values[random.Int(0, static_cast<int>(std::size(values)) - 1)];
}

// Changes or removes a value, perhaps one inside another.
void Mutate(Json& object, Random& random) {
  const int at = random.Int(0, static_cast<int>(object.size()) - 1);
  auto member = object.begin();
  std::advance(member, at);
  if (member->is_structured() && !member->empty() && random.Int(0, 3) > 0) {
    return Mutate(*member, random);
  }
  if (object.is_object() && random.Int(0, 4) == 0) {
    object.erase(member);
  } else {
    *member = Extreme(*member, random);
  }
}

// Whether the folder was served: a step of a few tokens then ran.
bool Serve(const std::string& folder) {
  const auto file = model::OpenCheckpoint(folder);
  if (!file.ok()) return false;
  auto spec = model::LoadSpec(**file);
  if (!spec.ok()) {
    EXPECT_FALSE(spec.status().message().empty());
    return false;
  }
  constexpr int kRows = 5;
  const SteadyClock clock;
  const auto backend = MakeCpuBackend({.isa = kernels::DetectIsas().back(),
                                       .max_rows = kRows,
                                       .max_positions = 16,
                                       .clock = &clock});
  model::KeepEveryPosition(*spec);  // one table is enough
  const ModelShard shard = WholeModel(*spec);
  const auto decoder = Decoder::Load(**file, *spec, {&shard, 1}, {}, 0, *backend);
  if (!decoder.ok()) return false;
  const absl::Status made = backend->CreateKv(
      KvShapeOf(*spec, kernels::KvFormat::kF32, shard.layers, spec->attention().kv_heads), 2, {});
  if (!made.ok()) return false;
  StepInputs inputs;
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5};
  const std::vector<std::int32_t> table{1};
  AddSequence(SequenceHandle{0}, 0, tokens, {table}, inputs);
  inputs.requests.push_back({.row = kRows - 1, .top = 3, .pick = RowRequest::Pick::kGreedy});
  decoder->Start(std::move(inputs), nullptr);
  EXPECT_TRUE(backend->Finish().ok());
  return true;
}

class HostileFolderTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HostileFolderTest, IsRefusedOrServed) {
  const testing::ScratchDirectory scratch, made;
  const std::string folder = scratch.path() + "/model";
  const std::string from = testing::TinyCaseFolder(GetParam(), made.path());
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(from + "/model.safetensors", folder + "/model.safetensors");
  std::ifstream text(from + "/config.json");
  const Json config = Json::parse(text);
  const auto write = [&](const Json& content) {
    std::ofstream(folder + "/config.json") << content.dump();
  };
  write(config);
  ASSERT_TRUE(Serve(folder));
  const int mutations = Mutations(GetParam());
  int served = 0;
  for (int i = 0; i < mutations; ++i) {
    const std::uint64_t seed = kFolderSeed + static_cast<std::uint64_t>(i);
    SCOPED_TRACE(seed);
    Random random(seed);
    Json changed = config;
    for (int count = random.Int(1, 2); count > 0; --count) Mutate(changed, random);
    write(changed);
    served += Serve(folder);
    if (HasFailure()) return;
  }
  std::printf("%s: %d of %d served\n", GetParam().c_str(), served, mutations);
  EXPECT_GT(served, 0);
  EXPECT_LT(served, mutations);
}

INSTANTIATE_TEST_SUITE_P(, HostileFolderTest, ::testing::ValuesIn(testing::AllTinyCases()),
                         testing::TinyCaseName);

}  // namespace
}  // namespace flotilla::worker
