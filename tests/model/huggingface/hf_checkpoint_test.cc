#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/content_hash.h"
#include "model/ggml_type.h"
#include "model/load_spec.h"
#include "model/stop_tokens.h"
#include "tests/support/allocations.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/test_model.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;

// A folder with a tiny Llama, which a test then changes.
class HfCheckpointTest : public ::testing::Test {
 protected:
  HfCheckpointTest() {
    const auto gguf = ParseCheckpoint(tiny_);
    EXPECT_TRUE(gguf.ok()) << gguf.status();
    testing::WriteLlamaFolder(**gguf, folder_);
  }

  std::string PathOf(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  OrderedJson Read(const std::string& name) const {
    std::ifstream file(PathOf(name));
    return OrderedJson::parse(file);
  }
  void Write(const std::string& name, const OrderedJson& content) {
    testing::WriteFile(PathOf(name), content.dump());
  }
  // The error of opening the folder and reading what it is.
  std::string Error() const {
    const auto file = OpenCheckpoint(folder_);
    if (!file.ok()) return std::string(file.status().message());
    return std::string(LoadSpec(**file).status().message());
  }
  // The error after a value of config.json was set.
  std::string ErrorWith(const std::string& key, const OrderedJson& value) {
    const OrderedJson before = Read("config.json");
    OrderedJson changed = before;
    changed[key] = value;
    Write("config.json", changed);
    std::string error = Error();
    Write("config.json", before);
    return error;
  }

  // Adds a file with one tensor.
  void AddTensor(const testing::HfTensor& tensor) {
    const std::string file = absl::StrCat(tensor.name, ".safetensors");
    testing::WriteFile(PathOf(file), testing::Safetensors({tensor}));
    OrderedJson index = Read("model.safetensors.index.json");
    index["weight_map"][tensor.name] = file;
    Write("model.safetensors.index.json", index);
  }

  const std::vector<std::byte> tiny_ = testing::TinyGguf();
  testing::ScratchDirectory scratch_;
  const std::string folder_ = scratch_.path() + "/tiny-llama";
};

TEST_F(HfCheckpointTest, ReadsWhatTheGgufSays) {
  const auto file = OpenCheckpoint(folder_ + "/");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->format(), "Hugging Face folder with 2 safetensors files");
  const auto gguf = ParseCheckpoint(tiny_);
  const auto spec = LoadSpec(**file), same = LoadSpec(**gguf);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers, same->layers);
  EXPECT_EQ(spec->vocab, same->vocab);
  EXPECT_EQ(spec->context_length, same->context_length);
  EXPECT_EQ(spec->tied_embedding, same->tied_embedding);
  EXPECT_EQ(spec->ropes[0].frequencies, same->ropes[0].frequencies);
  const auto tokenizer = (*file)->ReadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*file)->token_count(), tokenizer->tokens.size());
}

TEST_F(HfCheckpointTest, NewAndOldNumbersOfRope) {
  const auto rope = [&] {
    const auto file = OpenCheckpoint(folder_);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto spec = LoadSpec(**file);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->ropes[0].frequencies;
  };
  OrderedJson config = Read("config.json");
  const auto old = rope();
  config["rope_parameters"] = {{"rope_theta", config["rope_theta"]}, {"rope_type", "default"}};
  config.erase("rope_theta");
  config.erase("rope_scaling");
  Write("config.json", config);
  EXPECT_EQ(rope(), old);
  config["rope_parameters"]["rope_type"] = "linear";
  config["rope_parameters"]["factor"] = 4;
  Write("config.json", config);
  EXPECT_EQ(rope()[0], old[0] / 4);
  // A model of several kinds of input.
  Write("config.json", {{"model_type", "some_vision"}, {"text_config", config}});
  EXPECT_EQ(rope()[0], old[0] / 4);
  // Layers with a window may have numbers of their own, which not every architecture knows.
  config["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}, {"rope_type", "linear"}}}};
  config["rope_parameters"]["full_attention"]["factor"] = 4;
  Write("config.json", config);
  EXPECT_EQ(rope()[0], old[0] / 4);
  config["rope_parameters"]["sliding_attention"] = {{"rope_theta", 1e4}};
  Write("config.json", config);
  EXPECT_THAT(Error(), HasSubstr("other numbers in layers with a window is not supported"));
}

// The numbers are those of transformers 5.24 (modeling_rope_utils.py).
TEST_F(HfCheckpointTest, DynamicScalingAndLongRopeGoByTheServedContext) {
  OrderedJson config = Read("config.json");
  const auto read = [&](std::uint32_t served) {
    Write("config.json", config);
    const auto file = OpenCheckpoint(folder_);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto spec = LoadSpec(**file, served);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *spec;
  };
  const auto expect = [](const ModelSpec& spec, const std::vector<float>& frequencies) {
    const std::size_t places[] = {0, 1, 7, 15};  // of 16
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      EXPECT_NEAR(spec.ropes[0].frequencies[places[i]], frequencies[i], 4e-7 * frequencies[i]) << i;
    }
  };
  config["max_position_embeddings"] = 2048;
  config["rope_theta"] = 10000.0;
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  for (const std::uint32_t served : {0u, 1000u, 2048u}) {
    const ModelSpec spec = read(served);
    expect(spec, {1, 0.562341332f, 0.0177827943f, 0.00017782794f});
    EXPECT_EQ(spec.served_context, served > 0 ? served : 2048);
    EXPECT_EQ(spec.longest_context, 8192u);
    EXPECT_EQ(spec.rope_context, 0u);
  }
  const ModelSpec some = read(3000), most = read(8192);
  expect(some, {1, 0.524302483f, 0.0108911432f, 6.21911895e-05f});
  expect(most, {1, 0.473954976f, 0.00537229376f, 1.36790723e-05f});
  EXPECT_EQ(some.rope_context, 3000u);
  EXPECT_EQ(some.ropes[0].magnitude, 1);

  std::vector<double> short_factors, long_factors;
  for (int i = 0; i < 16; ++i) {
    short_factors.push_back(1 + i / 16.0);
    long_factors.push_back(1 + i);
  }
  config["max_position_embeddings"] = 131072;
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"original_max_position_embeddings", 4096},
                            {"short_factor", short_factors},
                            {"long_factor", long_factors}};
  for (const std::uint32_t served : {1u, 4096u}) {
    const ModelSpec spec = read(served);
    expect(spec, {1, 0.529262424f, 0.0123706395f, 9.17821599e-05f});
    EXPECT_FLOAT_EQ(spec.ropes[0].magnitude, 1.19023807f);
    EXPECT_EQ(spec.rope_context, 4096u);
  }
  for (const std::uint32_t served : {0u, 4097u}) {
    const ModelSpec spec = read(served);
    expect(spec, {1, 0.281170666f, 0.00222284929f, 1.11142463e-05f});
    EXPECT_FLOAT_EQ(spec.ropes[0].magnitude, 1.19023807f);
    EXPECT_EQ(spec.rope_context, 0u);
  }
  // A stated factor stands for the ratio of the contexts.
  config["rope_scaling"]["factor"] = 4.0;
  EXPECT_FLOAT_EQ(read(0).ropes[0].magnitude, 1.08012345f);
}

TEST_F(HfCheckpointTest, RefusalsNameFileKeyAndBound) {
  EXPECT_EQ(Error(), "");
  EXPECT_THAT(ErrorWith("num_hidden_layers", 1 << 20),
              HasSubstr("config.json: num_hidden_layers = 1048576 is not in 1..512"));
  EXPECT_THAT(ErrorWith("hidden_size", -64), HasSubstr("hidden_size = -64 is not a non-negative"));
  EXPECT_THAT(ErrorWith("hidden_size", nullptr), HasSubstr("hidden_size is null"));
  EXPECT_THAT(ErrorWith("head_dim", 320), HasSubstr("head_dim = 320 is not in 2..256"));
  EXPECT_THAT(ErrorWith("rms_norm_eps", "1e-5"),
              HasSubstr("rms_norm_eps = \"1e-5\" is not a number"));
  EXPECT_THAT(ErrorWith("hidden_act", "mish"), HasSubstr("'mish' is not supported"));
  EXPECT_THAT(ErrorWith("sliding_window", 512), HasSubstr("sliding_window is not supported"));
  EXPECT_THAT(ErrorWith("num_local_experts", 8), HasSubstr("num_local_experts is not supported"));
  EXPECT_THAT(ErrorWith("partial_rotary_factor", 1.5),
              HasSubstr("partial_rotary_factor = 1.5 is not above 0 and up to 1"));
  EXPECT_THAT(ErrorWith("partial_rotary_factor", 1e300), HasSubstr("is not"));
  EXPECT_THAT(ErrorWith("model_type", "bert"), HasSubstr("architecture 'bert' is not supported"));
  EXPECT_THAT(ErrorWith("model_type", nullptr), HasSubstr("config.json has no model_type"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "yarn"}}), HasSubstr("factor is missing"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "dynamic"}}), HasSubstr("factor is missing"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "dynamic"}, {"factor", 0.5}}),
              HasSubstr("factor = 0.5 is not in 1..1e+06"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "proportional"}}),
              HasSubstr("'proportional' is not supported"));
  EXPECT_THAT(ErrorWith("vocab_size", 7), HasSubstr("vocab_size = 7 is not in"));
}

TEST_F(HfCheckpointTest, FilesThatAreNoJsonOrTooMuchOfIt) {
  testing::WriteFile(PathOf("config.json"), R"({"a": nan})");
  EXPECT_THAT(Error(), HasSubstr("no valid JSON at byte"));
  testing::WriteFile(PathOf("config.json"), std::string(100'000, '['));
  EXPECT_THAT(Error(), HasSubstr("nested more than 16 deep"));
  testing::WriteFile(PathOf("config.json"), R"({"a": 1, "a": 2})");
  EXPECT_THAT(Error(), HasSubstr("key 'a' appears twice"));
  testing::WriteFile(PathOf("config.json"), std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(Error(), HasSubstr("has 1048577 bytes, not at most 1048576"));
  std::filesystem::remove(PathOf("config.json"));
  EXPECT_THAT(Error(), HasSubstr("config.json"));
}

// A file may be large, but what it becomes in memory is bounded too.
TEST_F(HfCheckpointTest, FilesOfManySmallValues) {
  const auto many = [](const std::string& value) {
    std::string text = R"({"x": [)";
    for (int i = 0; i < 2'000'000; ++i) text += value + ",";
    return text + "0]}";
  };
  testing::WriteFile(PathOf("tokenizer.json"), many("[]"));
  EXPECT_THAT(Error(), HasSubstr("tokenizer.json: its values take more than 85108894 bytes"));
  testing::WriteFile(PathOf("tokenizer.json"), many(R"("")"));
  EXPECT_THAT(Error(), HasSubstr("tokenizer.json: its values take more than"));
  testing::WriteFile(PathOf("tokenizer.json"), many("1234567890123456789"));
  EXPECT_EQ(Error(), "");  // refused later, as it has no model
  std::string index = R"({"weight_map": {)";
  for (int i = 0; i < 1'200'000; ++i) absl::StrAppend(&index, "\"", i, R"(":"",)");
  testing::WriteFile(PathOf("model.safetensors.index.json"), index + R"("x":"a"}})");
  EXPECT_THAT(Error(), HasSubstr("index.json: its values take more than"));
}

// Python writes numbers that JSON does not have.
TEST_F(HfCheckpointTest, NumbersThatAreNoneAreNamed) {
  const std::string good = Read("config.json").dump();
  const auto with = [&](const std::string& number) {
    testing::WriteFile(PathOf("config.json"),
                       absl::StrCat(R"({"first": 1, "a_theta":  )", number, ", ", good.substr(1)));
    return Error();
  };
  EXPECT_EQ(with("1"), "");
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999"}) {
    EXPECT_THAT(with(number),
                HasSubstr(absl::StrCat("config.json: a_theta = ", number, " is no finite number")));
    EXPECT_THAT(with(absl::StrCat("[1, ", number, "]")),
                HasSubstr(absl::StrCat("config.json: a_theta = ", number, " is no finite number")));
  }
  EXPECT_THAT(with("Nan"), HasSubstr("config.json: no valid JSON at byte 26"));
  EXPECT_THAT(with("-"), HasSubstr("no valid JSON at byte"));
}

// What is refused takes no more memory than what is served.
TEST_F(HfCheckpointTest, RefusalsKeepTheBoundOfMemory) {
  for (const std::string value : {"1", "[]", R"({"a":0})", R"("0123456789abcdef")", "keys"}) {
    std::string text = R"({"x":)";
    text += value == "keys" ? "{" : "[";
    for (int i = 0; text.size() < std::size_t{24} << 20; ++i) {
      if (value == "keys") absl::StrAppend(&text, "\"", i, "\":0,");
      if (value != "keys") absl::StrAppend(&text, value, ",");
    }
    text += value == "keys" ? R"("x":0}})" : "0]}";
    testing::WriteFile(PathOf("tokenizer.json"), text);
    const testing::PeakMemory memory;
    EXPECT_THAT(Error(), HasSubstr("tokenizer.json: its values take more than"));
    EXPECT_LE(memory.bytes(), 4 * text.size() + (64 << 20)) << value;
  }
}

TEST_F(HfCheckpointTest, TheIndexNamesFewFiles) {
  OrderedJson index = {{"weight_map", OrderedJson::object()}};
  for (int i = 0; i < 1001; ++i) {
    index["weight_map"][absl::StrCat(i)] = absl::StrCat(i, ".safetensors");
  }
  Write("model.safetensors.index.json", index);
  EXPECT_THAT(Error(), HasSubstr("index.json names more than 1000 files"));
}

TEST_F(HfCheckpointTest, TheIndexAndItsFilesAgree) {
  const std::string index = "model.safetensors.index.json";
  const OrderedJson good = Read(index);
  const auto with = [&](const std::string& tensor, const OrderedJson& file) {
    OrderedJson changed = good;
    changed["weight_map"][tensor] = file;
    Write(index, changed);
    return Error();
  };
  const std::string one = "model-00001-of-00002.safetensors";
  EXPECT_THAT(with("model.norm.weight", "../" + one), HasSubstr("is not the name of a file"));
  EXPECT_THAT(with("model.norm.weight", "/etc/passwd"), HasSubstr("is not the name of a file"));
  EXPECT_THAT(with("model.norm.weight", ".."), HasSubstr("is not the name of a file"));
  EXPECT_THAT(with("model.norm.weight", 1), HasSubstr("a file that is no string"));
  EXPECT_THAT(with("model.norm.weight", "model-00002-of-00002.safetensors"),
              HasSubstr("is not listed for this file"));
  EXPECT_THAT(with("more.weight", one), HasSubstr("lacks tensor more.weight"));
  EXPECT_THAT(with("more.weight", "none.safetensors"),
              AllOf(HasSubstr("cannot open"),
                    HasSubstr("none.safetensors, which model.safetensors.index.json lists")));
  OrderedJson without = good;
  without["weight_map"].erase("model.norm.weight");
  Write(index, without);
  EXPECT_THAT(Error(), HasSubstr("tensor model.norm.weight is not listed"));
  Write(index, good);
  std::filesystem::copy(PathOf(one), PathOf("copy.safetensors"));
  OrderedJson twice = good;
  for (auto& [tensor, file] : twice["weight_map"].items()) {
    if (tensor == "model.norm.weight") file = "copy.safetensors";
  }
  Write(index, twice);
  EXPECT_THAT(Error(), HasSubstr("not listed for this file"));
}

TEST_F(HfCheckpointTest, WeightsOfPyTorchAreNamed) {
  std::filesystem::remove(PathOf("model.safetensors.index.json"));
  EXPECT_THAT(Error(), HasSubstr("cannot open " + PathOf("model.safetensors")));
  testing::WriteFile(PathOf("pytorch_model.bin.index.json"), "{}");
  EXPECT_THAT(Error(), HasSubstr("pytorch_model.bin.index.json is in PyTorch's format"));
  testing::WriteFile(PathOf("pytorch_model.bin"), "PK");
  EXPECT_THAT(Error(), HasSubstr("/pytorch_model.bin is in PyTorch's format, which flotilla does "
                                 "not read; convert the model to safetensors"));
  // A folder may have both.
  testing::WriteFile(PathOf("model.safetensors"), testing::Safetensors({}));
  EXPECT_THAT(Error(), HasSubstr("model.embed_tokens.weight"));
}

TEST_F(HfCheckpointTest, TheHeadIsTheTokenTableIfTheConfigSaysSo) {
  const auto tied = [&](bool value) {
    OrderedJson config = Read("config.json");
    config["tie_word_embeddings"] = value;
    Write("config.json", config);
    const auto spec = LoadSpec(**OpenCheckpoint(folder_));
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->tied_embedding;
  };
  EXPECT_TRUE(tied(true));
  EXPECT_THAT(ErrorWith("tie_word_embeddings", false), HasSubstr("lm_head.weight is missing"));
  const auto spec = LoadSpec(**OpenCheckpoint(folder_));
  const std::uint64_t vocab = spec->vocab, hidden = spec->hidden;
  AddTensor({"lm_head.weight", "BF16", {vocab, hidden}, std::string(2 * vocab * hidden, '\0')});
  EXPECT_FALSE(tied(false));
  EXPECT_TRUE(tied(true));
}

// By transformers' _compute_yarn_parameters: without a factor, 0.1 ln(4) + 1, or the quotient of
// two such numbers.
TEST_F(HfCheckpointTest, YarnHasAMagnitude) {
  const auto magnitude = [&](const OrderedJson& more) {
    OrderedJson config = Read("config.json");
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
    config["rope_scaling"].update(more);
    Write("config.json", config);
    const auto spec = LoadSpec(**OpenCheckpoint(folder_));
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->ropes[0].magnitude;
  };
  EXPECT_FLOAT_EQ(magnitude({{"truncate", true}}), 1.1386294f);
  EXPECT_FLOAT_EQ(magnitude({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1);
  EXPECT_FLOAT_EQ(magnitude({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}), 1.1386294f / 1.0693147f);
  EXPECT_FLOAT_EQ(magnitude({{"mscale", 1.0}}), 1.1386294f);
  // Without a factor it is that of the two contexts.
  const int context = Read("config.json")["max_position_embeddings"];
  EXPECT_FLOAT_EQ(
      magnitude({{"factor", nullptr}, {"original_max_position_embeddings", context / 4}}),
      1.1386294f);
  EXPECT_FLOAT_EQ(magnitude({{"attention_factor", 1.5}, {"mscale", 1.0}}), 1.5f);
}

TEST_F(HfCheckpointTest, LinksThatLeadNowhereAreErrors) {
  std::filesystem::create_symlink("nowhere.json", PathOf("generation_config.json"));
  EXPECT_THAT(Error(), HasSubstr("cannot open"));
}

// Old folders hold what can be computed, and masks.
TEST_F(HfCheckpointTest, SomeTensorsHaveNoUse) {
  AddTensor({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, std::string(8, '\0')});
  EXPECT_EQ(Error(), "");
  AddTensor({"model.layers.0.self_attn.bias", "U8", {2}, std::string(2, '\0')});
  EXPECT_THAT(Error(), HasSubstr("model.layers.0.self_attn.bias has no meaning"));
}

TEST_F(HfCheckpointTest, ValuesOfOtherTypesAreRefused) {
  EXPECT_THAT(ErrorWith("hidden_act", {"silu"}), HasSubstr("hidden_act is not a string"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"rope_type", 5}}),
              HasSubstr("rope_type = 5 is not a string"));
  EXPECT_THAT(ErrorWith("rope_theta", 1), HasSubstr("rope_theta"));
  EXPECT_THAT(ErrorWith("tie_word_embeddings", "no"), HasSubstr("is not true or false"));
  EXPECT_THAT(ErrorWith("use_sliding_window", 1), HasSubstr("is not true or false"));
  EXPECT_THAT(ErrorWith("rope_scaling", "yarn"), HasSubstr("rope_scaling is not an object"));
  EXPECT_THAT(ErrorWith("text_config", OrderedJson::array()),
              HasSubstr("text_config is not an object"));
  for (const OrderedJson& part :
       {OrderedJson("0.5"), OrderedJson(0), OrderedJson(-3), OrderedJson(1.5)}) {
    EXPECT_THAT(ErrorWith("partial_rotary_factor", part), HasSubstr("is not above 0 and up to 1"));
  }
  for (const OrderedJson& ends : {OrderedJson("x"), OrderedJson(-1), OrderedJson(true),
                                  OrderedJson(1.0), OrderedJson({{1}})}) {
    EXPECT_THAT(ErrorWith("eos_token_id", ends), HasSubstr("config.json: eos_token_id is neither"));
  }
}

TEST_F(HfCheckpointTest, AFifoIsNoFile) {
  std::filesystem::remove(PathOf("config.json"));
  ASSERT_EQ(mkfifo(PathOf("config.json").c_str(), 0600), 0);
  EXPECT_THAT(Error(), HasSubstr("is not a file with content"));
}

// What a clone without Git LFS has in place of large files.
TEST_F(HfCheckpointTest, PointersOfGitLfsAreNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 988097824\n";
  for (const char* name : {"tokenizer.json", "model-00001-of-00002.safetensors"}) {
    testing::WriteFile(PathOf(name), pointer);
    EXPECT_EQ(Error(), PathOf(name) +
                           " is a pointer of Git LFS and not the file itself, which `git "
                           "lfs pull` fetches");
  }
  const std::string gguf = scratch_.path() + "/m.gguf";
  testing::WriteFile(gguf, pointer);
  EXPECT_THAT(std::string(OpenCheckpoint(gguf).status().message()),
              HasSubstr("pointer of Git LFS"));
}

TEST_F(HfCheckpointTest, OtherPathsThanTheFoldersAreNamed) {
  const std::string file = PathOf("model-00001-of-00002.safetensors");
  EXPECT_EQ(OpenCheckpoint(file).status().message(),
            file + " is one file of a Hugging Face folder; give the folder's path");
  std::filesystem::remove(PathOf("config.json"));
  EXPECT_EQ(Error(), folder_ +
                         " has no config.json, so that it is no Hugging Face folder; of a GGUF "
                         "file, give the path of the file");
}

TEST_F(HfCheckpointTest, LinksStayInTheFolderOrInTheHubsCache) {
  namespace fs = std::filesystem;
  const std::string one = "model-00001-of-00002.safetensors";
  fs::rename(PathOf(one), scratch_.path() + "/elsewhere");
  fs::create_symlink("../elsewhere", PathOf(one));
  EXPECT_THAT(Error(), HasSubstr("is a link out of its folder"));
  // snapshots/HASH with links to ../../blobs/HASH.
  const std::string snapshot = scratch_.path() + "/hub/snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_directories(scratch_.path() + "/hub/blobs");
  fs::rename(scratch_.path() + "/elsewhere", scratch_.path() + "/hub/blobs/123");
  fs::remove(PathOf(one));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    fs::copy(entry.path(), snapshot / entry.path().filename());
  }
  fs::create_symlink("../../blobs/123", snapshot + "/" + one);
  const auto file = OpenCheckpoint(snapshot);
  ASSERT_TRUE(file.ok()) << file.status();
  // Another folder of that depth is none of the cache.
  const std::string other = scratch_.path() + "/hub/elsewhere/abc";
  fs::create_directories(scratch_.path() + "/hub/elsewhere");
  fs::rename(snapshot, other);
  EXPECT_THAT(std::string(OpenCheckpoint(other).status().message()),
              HasSubstr("is a link out of its folder"));
}

TEST_F(HfCheckpointTest, TokenizersThatAreNotKnownAreNamed) {
  const OrderedJson good = Read("tokenizer.json");
  const auto error = [&](const OrderedJson& tokenizer) {
    Write("tokenizer.json", tokenizer);
    const auto file = OpenCheckpoint(folder_);
    EXPECT_TRUE(file.ok()) << file.status();
    return std::string((*file)->ReadTokenizer().status().message());
  };
  EXPECT_EQ(error(good), "");
  OrderedJson changed = good;
  changed["model"]["type"] = "WordLevel";
  EXPECT_THAT(error(changed), HasSubstr("the model 'WordLevel' is not supported"));
  changed = good;
  changed["pre_tokenizer"] = {{"type", "Whitespace"}};
  EXPECT_THAT(error(changed), HasSubstr("the pre-tokenizer that has no ByteLevel"));
  changed = good;
  changed["normalizer"] = {{"type", "Uppercase"}};
  EXPECT_THAT(error(changed), HasSubstr("the normalizer 'Uppercase' is not supported"));
  changed = good;
  changed["decoder"] = {{"type", "WordPiece"}};
  EXPECT_THAT(error(changed), HasSubstr("ByteLevel without such a decoder is not supported"));
  changed = good;
  changed["model"]["vocab"]["last"] = 1 << 30;
  EXPECT_THAT(error(changed), HasSubstr("has 1073741825 tokens, not 1.."));
  changed["model"]["vocab"]["last"] = 1 << 17;
  EXPECT_THAT(error(changed), HasSubstr("has ids up to 131072 for"));
  EXPECT_THAT(error(changed), HasSubstr("at most 65536 ids may be unused"));
  changed = good;
  changed["model"]["merges"].push_back(7);
  EXPECT_THAT(error(changed), HasSubstr("is neither a string nor two"));
  changed = good;
  changed["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Split"},
                                                  {"pattern", {{"Regex", "(a+)+"}}},
                                                  {"behavior", "Elsewhere"},
                                                  {"invert", false}};
  EXPECT_THAT(error(changed), HasSubstr("the pre-tokenizer 'Split' is not supported"));
  std::filesystem::remove(PathOf("tokenizer.json"));
  const auto file = OpenCheckpoint(folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string((*file)->ReadTokenizer().status().message()),
              HasSubstr("tokenizer.json and tokenizer.model are missing; save_pretrained"));
}

// How Llama 3 and Qwen 2 split, as their tokenizer.json says it, and ids that no token has.
TEST_F(HfCheckpointTest, KnownPatternsAndUnusedIds) {
  const std::string before = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
                    after = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  OrderedJson tokenizer = Read("tokenizer.json"), config = Read("config.json");
  const auto read = [&](const std::string& digits) {
    tokenizer["pre_tokenizer"]["pretokenizers"][0] = {
        {"type", "Split"},
        {"pattern", {{"Regex", absl::StrCat(before, digits, after)}}},
        {"behavior", "Isolated"},
        {"invert", false}};
    tokenizer["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = false;
    Write("tokenizer.json", tokenizer);
    const auto file = OpenCheckpoint(folder_);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto bundle = (*file)->ReadTokenizer();
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    return bundle.value_or(TokenizerBundle());
  };
  tokenizer["model"]["ignore_merges"] = true;
  EXPECT_EQ(read(R"(\p{N}{1,3})").pretokenizer, "llama-bpe");
  tokenizer["model"]["ignore_merges"] = false;
  tokenizer["normalizer"] = {{"type", "NFC"}};
  const TokenizerBundle qwen = read(R"(\p{N})");
  EXPECT_EQ(qwen.pretokenizer, "qwen2");
  const std::size_t tokens = qwen.tokens.size();
  config["vocab_size"] = tokens + 2;
  Write("config.json", config);
  const TokenizerBundle padded = read(R"(\p{N})");
  ASSERT_EQ(padded.tokens.size(), tokens + 2);
  EXPECT_EQ(padded.tokens.back(), absl::StrCat("[PAD", tokens + 1, "]"));
  EXPECT_EQ(padded.kinds.back(), TokenKind::kUnused);
  EXPECT_EQ((*OpenCheckpoint(folder_))->token_count(), tokens);
  // An id between others without a token counts.
  tokenizer["added_tokens"].push_back(
      {{"id", tokens + 1}, {"content", "<last>"}, {"special", true}});
  EXPECT_EQ(read(R"(\p{N})").tokens[tokens], absl::StrCat("[PAD", tokens, "]"));
  EXPECT_EQ((*OpenCheckpoint(folder_))->token_count(), tokens + 2);
  // Added tokens beyond the rows are left out; all others are refused.
  config["vocab_size"] = tokens;
  Write("config.json", config);
  EXPECT_EQ(read(R"(\p{N})").tokens.size(), tokens);
  EXPECT_EQ(Error(), "");
  tokenizer["model"]["vocab"]["last"] = tokens + 1;
  tokenizer["added_tokens"].erase(tokenizer["added_tokens"].size() - 1);
  EXPECT_EQ(read(R"(\p{N})").tokens.size(), tokens + 2);
  EXPECT_THAT(Error(), HasSubstr(absl::StrCat("the tokenizer has ", tokens + 2, " tokens")));
}

TEST_F(HfCheckpointTest, RowsBeyondTheTokensBelongToNone) {
  OrderedJson tokenizer = Read("tokenizer.json");
  const std::size_t rows = testing::TinyModelOptions().vocab;
  for (auto id = rows - 1; tokenizer["added_tokens"].back()["id"] == id && id > 310; --id) {
    tokenizer["added_tokens"].erase(tokenizer["added_tokens"].size() - 1);
  }
  Write("tokenizer.json", tokenizer);
  const auto spec = LoadSpec(**OpenCheckpoint(folder_));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->vocab, rows);
  EXPECT_EQ(spec->tokens, 311u);
}

// A generation_config.json may list many tokens that end an answer.
TEST_F(HfCheckpointTest, ManyTokensEndAnAnswer) {
  const auto write = [&](int config, int generation) {
    OrderedJson changed = Read("config.json"), list = OrderedJson::array(),
                all = OrderedJson::array();
    for (int id = 10; id < 10 + config; ++id) list.push_back(id);
    for (int id = 10; id < 10 + generation; ++id) all.push_back(id);
    changed["eos_token_id"] = list;
    Write("config.json", changed);
    Write("generation_config.json", {{"eos_token_id", all}});
  };
  OrderedJson settings = Read("tokenizer_config.json");
  write(40, 63);
  const auto file = OpenCheckpoint(folder_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = (*file)->ReadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->more_ends.size(), 61u);  // with eos of tokenizer_config.json, less three
  const std::vector<TokenId> stops = StopTokens(*tokenizer);
  for (TokenId id = 10; id < 73; ++id) {
    EXPECT_TRUE(std::ranges::binary_search(stops, id)) << id;
  }
  EXPECT_NE(TokenizerHash(*tokenizer), [&] {
    TokenizerBundle fewer = *tokenizer;
    fewer.more_ends.pop_back();
    return TokenizerHash(fewer);
  }());
  write(1, 65);
  EXPECT_THAT(Error(), HasSubstr("generation_config.json: eos_token_id is neither a token id nor a "
                                 "list of up to 64"));
}

TEST_F(HfCheckpointTest, SamplingAndTokensOfTemplatesAreWhatTheFilesSay) {
  const auto read = [&](const OrderedJson& generation, const OrderedJson& pad) {
    OrderedJson settings = Read("tokenizer_config.json");
    settings["pad_token"] = settings["unk_token"] = pad;
    Write("tokenizer_config.json", settings);
    Write("generation_config.json", generation);
    const auto file = OpenCheckpoint(folder_);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto tokenizer = (*file)->ReadTokenizer();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *tokenizer;
  };
  const TokenizerBundle some = read({{"temperature", 0.6},
                                     {"top_k", 20},
                                     {"do_sample", true},
                                     {"top_p", nullptr},
                                     {"typical_p", "1"},
                                     {"max_new_tokens", 5}},
                                    {{"content", "<|im_end|>"}});
  ASSERT_EQ(some.sampling.size(), 3u);
  EXPECT_EQ(some.sampling[0], (SamplingDefault{"temperature", 0.6}));
  EXPECT_EQ(some.sampling[1], (SamplingDefault{"top_k", 20}));
  EXPECT_EQ(some.sampling[2].name, "typical_p");
  EXPECT_TRUE(std::isnan(some.sampling[2].value));
  ASSERT_GE(some.pad, 0);
  EXPECT_EQ(some.tokens[some.pad], "<|im_end|>");
  EXPECT_EQ(some.unknown, some.pad);
  const TokenizerBundle none = read({{"do_sample", true}}, "no such token");
  EXPECT_TRUE(none.sampling.empty());
  EXPECT_EQ(none.pad, -1);
  EXPECT_EQ(none.unknown, -1);
}

TEST_F(HfCheckpointTest, ChatTemplatesHaveNames) {
  const auto read = [&] {
    const auto file = OpenCheckpoint(folder_);
    if (!file.ok()) return absl::StatusOr<TokenizerBundle>(file.status());
    return (*file)->ReadTokenizer();
  };
  const auto names = [](const TokenizerBundle& bundle) {
    std::string text;
    for (const NamedTemplate& named : bundle.more_templates)
      text += named.name + "=" + named.text + " ";
    return text;
  };
  OrderedJson config = Read("tokenizer_config.json");
  config["chat_template"] = OrderedJson::array(
      {{{"name", "tool_use"}, {"template", "tools"}}, {{"name", "rag"}, {"template", "r"}}});
  Write("tokenizer_config.json", config);
  ASSERT_TRUE(read().ok()) << read().status();
  EXPECT_FALSE(read()->chat_template.has_value());
  EXPECT_EQ(names(*read()), "tool_use=tools rag=r ");
  config["chat_template"].push_back({{"name", "default"}, {"template", "plain"}});
  Write("tokenizer_config.json", config);
  ASSERT_TRUE(read().ok()) << read().status();
  EXPECT_EQ(read()->chat_template, "plain");
  EXPECT_EQ(names(*read()), "tool_use=tools rag=r ");
  // Files count before tokenizer_config.json.
  const std::string more = PathOf("additional_chat_templates");
  std::filesystem::create_directory(more);
  testing::WriteFile(more + "/tool_use.jinja", "files");
  testing::WriteFile(more + "/README.md", "no template");
  EXPECT_FALSE(read()->chat_template.has_value());
  EXPECT_EQ(names(*read()), "tool_use=files ");
  testing::WriteFile(PathOf("chat_template.jinja"), "main");
  ASSERT_TRUE(read().ok()) << read().status();
  EXPECT_EQ(read()->chat_template, "main");
  EXPECT_EQ(names(*read()), "tool_use=files ");
  // Links lead nowhere else.
  testing::WriteFile(scratch_.path() + "/secret", "x");
  std::filesystem::create_symlink("../../secret", more + "/evil.jinja");
  EXPECT_THAT(std::string(read().status().message()), HasSubstr("is a link out of its folder"));
  std::filesystem::remove(more + "/evil.jinja");
  std::filesystem::rename(more, scratch_.path() + "/elsewhere");
  std::filesystem::create_directory_symlink("../elsewhere", more);
  EXPECT_THAT(std::string(read().status().message()), HasSubstr("is a link out of its folder"));
  std::filesystem::remove(more);
  std::filesystem::create_directory(more);
  for (int i = 0; i < 17; ++i) {
    testing::WriteFile(absl::StrCat(more, "/", i, ".jinja"), "x");
  }
  EXPECT_THAT(std::string(read().status().message()), HasSubstr("more than 16 chat templates"));
}

// Rules are by far the most of a large tokenizer.json. They take no JSON values.
TEST_F(HfCheckpointTest, ManyRulesTakeLittleMemory) {
  const OrderedJson good = Read("tokenizer.json");
  std::string rules;
  const auto write = [&] {
    OrderedJson tokenizer = good;
    tokenizer["model"]["merges"] = "@rules@";
    std::string text = tokenizer.dump();
    text.replace(text.find("\"@rules@\""), 9, rules);
    testing::WriteFile(PathOf("tokenizer.json"), text);
    return text.size();
  };
  constexpr std::size_t kRules = 900'000;
  rules = "[";
  for (std::size_t i = 0; i < kRules; ++i) {
    absl::StrAppend(&rules, i == 0 ? "" : ",", R"(["a token of ten","and )", 1000000 + i, "\"]");
  }
  rules += "]";
  const std::size_t bytes = write();
  EXPECT_GT(bytes, std::size_t{28} << 20);
  {
    const testing::PeakMemory memory;
    const auto file = OpenCheckpoint(folder_);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto tokenizer = (*file)->ReadTokenizer();
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ASSERT_EQ(tokenizer->merges.size(), kRules);
    EXPECT_EQ(tokenizer->merges.back(), "a token of ten and 1899999");
    EXPECT_LE(memory.bytes(), 4 * bytes + (64 << 20));
  }
  // As many as tokens may be, and no more. A refusal keeps the bound, too.
  rules = "[\"a b\"";
  for (std::size_t i = 0; i < 5 << 20; ++i) rules += ",\"a b\"";
  rules += "]";
  const std::size_t refused = write();
  const testing::PeakMemory memory;
  EXPECT_THAT(Error(), HasSubstr("tokenizer.json: model.merges has more than 1048576 rules"));
  EXPECT_LE(memory.bytes(), 4 * refused + (64 << 20));
}

TEST_F(HfCheckpointTest, RulesAreStringsOrPairs) {
  const OrderedJson good = Read("tokenizer.json");
  const auto read = [&](const OrderedJson& rules) {
    OrderedJson tokenizer = good;
    tokenizer["model"]["merges"] = rules;
    // A list of that name elsewhere means nothing.
    tokenizer["other"] = {{"merges", OrderedJson::array({1, {{"merges", {2}}}})}};
    tokenizer["model"]["other"] = {{"merges", {3}}};
    Write("tokenizer.json", tokenizer);
    const auto file = OpenCheckpoint(folder_);
    EXPECT_TRUE(file.ok()) << file.status();
    return (*file)->ReadTokenizer();
  };
  const auto both = read({"a b", {"c", "d"}, "e f"});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->merges, (std::vector<std::string>{"a b", "c d", "e f"}));
  EXPECT_TRUE(read(OrderedJson::array())->merges.empty());
  EXPECT_THAT(std::string(read("a b").status().message()), HasSubstr("model.merges is no list"));
  const std::vector<OrderedJson> wrong = {OrderedJson(7),
                                          OrderedJson(nullptr),
                                          OrderedJson::array(),
                                          OrderedJson::array({"a"}),
                                          OrderedJson::array({"a", "b", "c"}),
                                          OrderedJson::array({"a", 1}),
                                          OrderedJson::array({1, "a", "b"}),
                                          OrderedJson::object(),
                                          {{"a", "b"}, {"c", "d"}},
                                          OrderedJson::array({"a", OrderedJson::array({"b"})}),
                                          OrderedJson::array({OrderedJson::object(), "a", "b"})};
  for (const OrderedJson& each : wrong) {
    EXPECT_THAT(std::string(read(OrderedJson::array({"a b", each, "c d"})).status().message()),
                HasSubstr("tokenizer.json: merge 1 is neither a string nor two"))
        << each;
  }
  OrderedJson deep = 1;
  for (int i = 0; i < 20; ++i) deep = OrderedJson::array({deep});
  OrderedJson tokenizer = good;
  tokenizer["model"]["merges"] = deep;
  Write("tokenizer.json", tokenizer);
  EXPECT_THAT(Error(), HasSubstr("nested more than 16 deep"));
}

// The real tokenizer comes back as it was, but for what only GGUF says.
TEST(HfTokenizer, IsTheBundleThatGgufHas) {
  const auto gguf = OpenCheckpoint(testing::ModelPath());
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const TokenizerBundle expected = *(*gguf)->ReadTokenizer();
  const testing::ScratchDirectory scratch;
  OrderedJson config = testing::TokenizerConfigJson(expected);
  config["pad_token"] = expected.tokens.at(expected.pad);
  config["unk_token"] = expected.tokens.at(expected.unknown);
  const std::string text = *expected.chat_template;
  config["chat_template"] = OrderedJson::array(
      {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", text}}});
  testing::WriteFile(scratch.path() + "/tokenizer.json", testing::TokenizerJson(expected).dump());
  testing::WriteFile(scratch.path() + "/tokenizer_config.json", config.dump());
  testing::WriteFile(scratch.path() + "/config.json",
                     R"({"model_type":"llama","text_config":{"eos_token_id":2}})");
  testing::WriteFile(scratch.path() + "/generation_config.json", R"({"eos_token_id":[2,0]})");
  testing::WriteFile(scratch.path() + "/model.safetensors", testing::Safetensors("{}", ""));
  const auto file = OpenCheckpoint(scratch.path());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = (*file)->ReadTokenizer();
  ASSERT_TRUE(read.ok()) << read.status();
  TokenizerBundle tokenizer = *read;
  EXPECT_EQ(tokenizer.eot, 0);
  tokenizer.eot = expected.eot;
  ASSERT_EQ(tokenizer.more_templates.size(), 1u);
  EXPECT_EQ(tokenizer.more_templates[0].name, "tool_use");
  tokenizer.more_templates.clear();
  tokenizer.add_eos = expected.add_eos;
  EXPECT_TRUE(tokenizer == expected);
}

}  // namespace
}  // namespace flotilla::model
