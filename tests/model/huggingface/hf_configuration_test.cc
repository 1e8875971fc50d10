// What a folder's model is where config.json is silent, says null, or is that of a model for
// several kinds of input.
#include "model/huggingface/hf_configuration.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/checkpoint.h"
#include "model/ggml_type.h"
#include "model/huggingface/class_defaults.h"
#include "model/load_spec.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_case.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;

Json ConfigOf(const std::string& name) {
  std::ifstream file(absl::StrCat("tests/data/tiny/", name, "/config.json"));
  return Json::parse(file);
}

// A folder with this configuration and these tensors.
class Folder {
 public:
  Folder(const Json& config, const std::vector<testing::HfTensor>& tensors) {
    testing::WriteFile(scratch_.path() + "/config.json", config.dump());
    testing::WriteFile(scratch_.path() + "/model.safetensors", testing::Safetensors(tensors));
    file_ = OpenCheckpoint(scratch_.path());
  }
  // The folder of a tiny case, with another configuration.
  Folder(const std::string& name, const Json& config) {
    testing::WriteFile(scratch_.path() + "/config.json", config.dump());
    std::filesystem::copy(absl::StrCat("tests/data/tiny/", name, "/model.safetensors"),
                          scratch_.path() + "/model.safetensors");
    file_ = OpenCheckpoint(scratch_.path());
  }
  const absl::StatusOr<std::shared_ptr<const Checkpoint>>& file() const { return file_; }
  // Errors are those of LoadSpec without the path of this folder.
  absl::StatusOr<ModelSpec> spec() const {
    if (!file_.ok()) return file_.status();
    auto spec = LoadSpec(**file_);
    if (spec.ok()) return spec;
    return absl::InvalidArgumentError(
        absl::StripPrefix(spec.status().message(), scratch_.path() + ": "));
  }

 private:
  testing::ScratchDirectory scratch_;
  absl::StatusOr<std::shared_ptr<const Checkpoint>> file_ = absl::UnknownError("not read");
};

// What the spec says, or why there is none.
std::string Described(const absl::StatusOr<ModelSpec>& spec) {
  if (!spec.ok()) return std::string(spec.status().message());
  std::string text = absl::StrCat(spec->context_length, " ", spec->logit_factor, " ",
                                  spec->logit_softcap, " ", spec->embedding_factor, " ",
                                  spec->tied_embedding, " ", spec->output_norm.eps, " ");
  for (const RopeSpec& rope : spec->ropes) {
    absl::StrAppend(&text, "rope ", rope.magnitude, " ", rope.frequencies.size(), " ",
                    rope.frequencies[1], " ");
  }
  for (const LayerSpec& layer : spec->layers) {
    const AttentionSpec& attention = layer.attention;
    absl::StrAppend(&text, "\n", layer.norm.eps, " ", attention.window, " ", attention.scale, " ",
                    attention.softcap, " ", attention.rope.value_or(9), " ",
                    static_cast<int>(layer.ffn.activation), " ", static_cast<int>(layer.wiring));
  }
  return text;
}

std::vector<testing::HfTensor> TensorsOf(const Checkpoint& file, const auto& name_of) {
  std::vector<testing::HfTensor> tensors;
  for (const Tensor& tensor : file.tensors()) {
    std::vector<std::uint64_t> shape(tensor.dims, tensor.dims + tensor.rank);
    std::reverse(shape.begin(), shape.end());
    const auto* data = reinterpret_cast<const char*>(tensor.data.data());
    tensors.push_back({name_of(std::string(tensor.name)), std::string(GgmlTypeName(tensor.type)),
                       shape, std::string(data, tensor.data.size())});
  }
  return tensors;
}

struct Default {
  const char* name;  // of a tiny case
  const char* key;
  Json value;
};

// From the configuration classes of transformers 4.57.1. To leave the key out is to state the
// value, and another value is another model.
TEST(HfConfigurationTest, AbsentKeysHaveTheDefaultsOfTheClass) {
  const Default defaults[] = {
      {"phi", "partial_rotary_factor", 0.5},
      {"stablelm", "partial_rotary_factor", 0.25},
      {"glm4", "partial_rotary_factor", 0.5},
      {"gpt_neox", "rotary_pct", 0.25},
      {"gptj", "rotary_dim", 64},
      {"cohere", "logit_scale", 0.0625},
      {"cohere2", "logit_scale", 0.0625},
      {"cohere2", "sliding_window", 4096},
      {"cohere2", "layer_norm_eps", 1e-5},
      {"gemma2", "attn_logit_softcapping", 50.0},
      {"gemma2", "final_logit_softcapping", 30.0},
      {"gemma2", "query_pre_attn_scalar", 256},
      {"gemma2", "sliding_window", 4096},
      {"gemma3_text", "query_pre_attn_scalar", 256},
      {"gemma3_text", "sliding_window", 4096},
      {"gemma3_text", "rope_theta", 1e6},
      {"gemma3_text", "rope_local_base_freq", 1e4},
      {"gemma3_text", "rms_norm_eps", 1e-6},
      {"gemma", "num_key_value_heads", 16},
      {"gemma", "head_dim", 256},
      {"gemma", "tie_word_embeddings", true},
      {"mixtral", "rope_theta", 1e6},
      {"mixtral", "num_local_experts", 8},
      {"mixtral", "num_key_value_heads", 8},
      {"mistral_swa", "sliding_window", 4096},
      {"mistral_swa", "num_key_value_heads", 8},
      {"smollm3_nope", "rope_theta", 2e6},
      {"smollm3_nope", "tie_word_embeddings", true},
      {"gpt_oss", "rope_theta", 150000},
      {"gpt_oss", "sliding_window", 128},
      {"gpt_oss", "num_experts_per_tok", 4},
      {"granite", "attention_multiplier", 1.0},
      {"qwen2", "rms_norm_eps", 1e-6},
      {"qwen3", "head_dim", 128},
      {"llama", "rms_norm_eps", 1e-6},
      {"llama", "max_position_embeddings", 2048},
      {"llama", "vocab_size", 32000},
      {"glm4", "rms_norm_eps", 1.5625e-07},
      {"opt", "enable_bias", true},
      {"bloom_alibi", "layer_norm_epsilon", 1e-5},
      {"falcon_mqa", "rope_theta", 1e4},
      {"gpt2", "activation_function", "gelu_new"},
      {"phi3", "original_max_position_embeddings", 4096},
      {"starcoder2", "norm_epsilon", 1e-5},
      {"deepseek_v2_mla", "first_k_dense_replace", 0},
      {"deepseek_v3_mla", "routed_scaling_factor", 2.5},
  };
  for (const auto& [name, key, value] : defaults) {
    SCOPED_TRACE(absl::StrCat(name, " ", key));
    Json config = ConfigOf(name);
    // The cases are written by a newer transformers, which keeps numbers of RoPE together.
    const Json rope = config.contains("rope_parameters") ? config["rope_parameters"] : Json();
    config.erase("rope_parameters");
    if (std::string_view(key).find("rope") == std::string_view::npos &&
        std::string_view(key).find("rotary") == std::string_view::npos && rope.is_object()) {
      config["rope_parameters"] = rope;
    }
    config[key] = value;
    const std::string stated = Described(Folder(name, config).spec());
    config.erase(key);
    std::string absent = Described(Folder(name, config).spec());
    const std::size_t at = absent.find(", which has the default of");
    if (at != std::string::npos) absent.erase(at, absent.find(',', at + 1) + 1 - at);
    EXPECT_EQ(absent, stated);
  }
}

TEST(HfConfigurationTest, AbsentWindowsOfQwenAreOff) {
  Json config = ConfigOf("qwen2");
  config["sliding_window"] = 16;
  config["max_window_layers"] = 0;
  config.erase("layer_types");
  config.erase("use_sliding_window");
  EXPECT_EQ(Folder("qwen2", config).spec()->attention().window, 0u);
  config["use_sliding_window"] = nullptr;
  EXPECT_EQ(Folder("qwen2", config).spec()->attention().window, 0u);
  config["use_sliding_window"] = true;
  EXPECT_EQ(Folder("qwen2", config).spec()->attention().window, 16u);
}

TEST(HfConfigurationTest, NullMeansNone) {
  Json config = ConfigOf("gemma2");
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"}) {
    config[key] = nullptr;
  }
  const auto spec = Folder("gemma2", config).spec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->attention().softcap, 0);
  EXPECT_EQ(spec->logit_softcap, 0);
  EXPECT_EQ(spec->attention().window, 0u);
  config["query_pre_attn_scalar"] = nullptr;
  EXPECT_THAT(Described(Folder("gemma2", config).spec()),
              HasSubstr("config.json: query_pre_attn_scalar is null"));
  // As many KV heads as heads.
  config = ConfigOf("phi");
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Folder("phi", config).spec()->attention().kv_heads, 4u);
  // Null counts as false, also where the default is true.
  config = ConfigOf("gpt_neox");
  config["use_parallel_residual"] = nullptr;
  EXPECT_EQ(Folder("gpt_neox", config).spec()->layers[0].wiring, Wiring::kSequential);
}

TEST(HfConfigurationTest, LayersWithoutPositions) {
  const auto without = [](const Json& changes) {
    Json config = ConfigOf("smollm3_nope");
    config.erase("no_rope_layers");
    config.erase("no_rope_layer_interval");
    config.merge_patch(changes);
    const auto spec = Folder("smollm3_nope", config).spec();
    if (!spec.ok()) return std::string(spec.status().message());
    std::string text;
    for (const LayerSpec& layer : spec->layers) text += layer.attention.rope ? '1' : '0';
    return text;
  };
  const auto layers = ConfigOf("smollm3_nope").value("num_hidden_layers", 0u);
  ASSERT_EQ(layers, 4u);
  EXPECT_EQ(without(Json::object()), "1110");
  EXPECT_EQ(without({{"no_rope_layer_interval", 2}}), "1010");
  EXPECT_EQ(without({{"no_rope_layer_interval", 2}, {"no_rope_layers", {1, 1, 0, 1}}}), "1101");
  EXPECT_THAT(without({{"no_rope_layer_interval", 0}}), HasSubstr("no_rope_layer_interval = 0"));
  EXPECT_THAT(without({{"no_rope_layers", {1, 1, 0.5, 1}}}),
              HasSubstr("config.json: no_rope_layers has 0.5"));
  EXPECT_THAT(without({{"no_rope_layers", {1, 1}}}), HasSubstr("has 2 numbers, not 4"));
}

TEST(HfConfigurationTest, AttentionInBothDirectionsIsRefused) {
  Json config = ConfigOf("gemma3_text");
  config["use_bidirectional_attention"] = true;
  EXPECT_THAT(
      Described(Folder("gemma3_text", config).spec()),
      HasSubstr("config.json: use_bidirectional_attention is true, which is not supported"));
}

// Names of other classes say nothing: transformers does not read them.
TEST(HfConfigurationTest, NamesAreThoseOfTheClass) {
  const auto same = [](const char* name, const char* key, const Json& value) {
    Json config = ConfigOf(name);
    const std::string before = Described(Folder(name, config).spec());
    config[key] = value;
    EXPECT_EQ(Described(Folder(name, config).spec()), before) << name << " " << key;
  };
  same("gpt2", "hidden_act", "relu");
  same("llama", "activation_function", "relu");
  same("llama", "rotary_dim", 4);
  same("llama", "", 5);
  same("gemma2", "hidden_act", "relu");
  Json config = ConfigOf("llama");
  config.erase("rope_parameters");
  config["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(Described(Folder("llama", config).spec()),
              HasSubstr("partial_rotary_factor = 0.5, which models of type llama do not have"));
  // Sizes have their usual names, too.
  config = ConfigOf("gpt2");
  const std::string before = Described(Folder("gpt2", config).spec());
  config["num_hidden_layers"] = config["n_layer"];
  config.erase("n_layer");
  EXPECT_EQ(Described(Folder("gpt2", config).spec()), before);
}

TEST(HfConfigurationTest, ScalingOfLayersWithAWindowIsRefused) {
  Json config = ConfigOf("gemma3_text");
  config["rope_parameters"] = {
      {"full_attention", {{"rope_theta", 1e6}, {"rope_type", "default"}}},
      {"sliding_attention", {{"rope_theta", 1e4}, {"rope_type", "default"}}}};
  EXPECT_TRUE(Folder("gemma3_text", config).spec().ok());
  config["rope_parameters"]["sliding_attention"] = {
      {"rope_theta", 1e4}, {"rope_type", "linear"}, {"factor", 8}};
  EXPECT_THAT(Described(Folder("gemma3_text", config).spec()),
              HasSubstr("rope_type of sliding_attention is \"linear\""));
}

// The text of Gemma 3 4B, whose folder states no more than this.
TEST(HfConfigurationTest, TextConfigOfGemma3) {
  const HfConfiguration config(Json::parse(R"({
      "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                      "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                      "sliding_window": 1024},
      "vision_config": {"hidden_size": 1152}})"),
                               "gemma");
  EXPECT_EQ(config.architecture().value_or(""), "gemma3_text");
  const std::pair<const char*, double> expected[] = {
      {"attention.head_count", 8},     {"attention.head_count_kv", 4},
      {"attention.key_length", 256},   {"attention.query_pre_attn_scalar", 256},
      {"rope.freq_base", 1e6},         {"rope.freq_base_swa", 1e4},
      {"rope.scaling.factor", 8},      {"attention.sliding_window", 1024},
      {"vocab_size", 262208},          {"attention.layer_norm_rms_epsilon", 1e-6},
      {"embedding_length", 2560},      {"context_length", 131072},
      {"attention.value_length", 256},
  };
  for (const auto& [key, value] : expected) EXPECT_EQ(config.Float(key).value_or(-1), value) << key;
  EXPECT_FALSE(config.Has("attn_logit_softcapping"));
  EXPECT_FALSE(config.Has("final_logit_softcapping"));
  EXPECT_EQ(config.String("feed_forward.activation").value_or(""), "gelu_pytorch_tanh");
  // The class of the text where no type is stated.
  const auto type = [](const char* outer) {
    const HfConfiguration nested({{"model_type", outer}, {"text_config", Json::object()}}, "");
    return std::string(nested.architecture().value_or("none"));
  };
  EXPECT_EQ(type("llava"), "llama");
  EXPECT_EQ(type("mistral3"), "mistral");
  EXPECT_EQ(type("unknown"), "none");
}

TEST(HfConfigurationTest, DefaultsAreOfKnownArchitectures) {
  for (const std::string_view name : {"llama", "gemma3_text", "gpt_oss", "qwen2_moe"}) {
    EXPECT_FALSE(ClassDefaults(name).empty()) << name;
  }
  EXPECT_TRUE(ClassDefaults("unknown").empty());
}

// gpt-oss has a bias for each of these.
TEST(HfConfigurationTest, BiasesOfGptOssAreNeeded) {
  const auto whole = OpenCheckpoint("tests/data/tiny/gpt_oss");
  ASSERT_TRUE(whole.ok());
  const auto all = TensorsOf(**whole, [](const std::string& name) { return name; });
  for (const char* name : {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                           "self_attn.v_proj.bias", "self_attn.o_proj.bias", "mlp.router.bias",
                           "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"}) {
    auto some = all;
    std::erase_if(some, [&](const auto& tensor) { return tensor.name.ends_with(name); });
    EXPECT_LT(some.size(), all.size());
    EXPECT_EQ(Described(Folder(ConfigOf("gpt_oss"), some).spec()),
              absl::StrCat("tensor model.layers.0.", name, " is missing"));
  }
  Json config = ConfigOf("gpt_oss");
  config["attention_bias"] = false;
  EXPECT_THAT(Described(Folder(config, all).spec()),
              HasSubstr("_proj.bias: the configuration says that"));
}

// The spec of a case (ReadTinyCase) whose config.json has these keys as well, and whose file has
// only the tensors that `keep` names.
absl::StatusOr<ModelSpec> SpecOfCase(
    const std::string& path, const Json& more,
    const std::function<bool(std::string_view)>& keep = [](std::string_view) { return true; }) {
  const testing::TinyCase whole = testing::ReadTinyCase(path);
  if (whole.file == nullptr) return absl::NotFoundError("there is no such case");
  auto tensors = TensorsOf(*whole.file, std::identity());
  std::erase_if(tensors, [&](const auto& tensor) { return !keep(tensor.name); });
  std::ifstream file(absl::StrCat("tests/data/", path, "/config.json"));
  Json config = Json::parse(file);
  config.update(more);
  return Folder(config, tensors).spec();
}
std::string ErrorOf(const absl::StatusOr<ModelSpec>& spec) {
  return std::string(spec.status().message());
}

// A folder that lacks every bias is not one of a model without biases.
TEST(HfConfigurationTest, BiasesThatAModelHasAreNeeded) {
  for (const char* name : {"bloom_alibi", "falcon_gqa", "gpt2", "gpt_bigcode_mqa", "gpt_neox",
                           "gptj", "opt", "phi", "stablelm", "starcoder2"}) {
    const auto keep = [](std::string_view tensor) { return !tensor.ends_with(".bias"); };
    EXPECT_THAT(ErrorOf(SpecOfCase(absl::StrCat("tiny/", name), Json::object(), keep)),
                HasSubstr(".bias is missing"))
        << name;
  }
}

// The configuration decides which biases and norms a layer has, as in transformers. A file that
// disagrees is refused, whichever of both has more.
TEST(HfConfigurationTest, TheFileHasWhatTheConfigurationStates) {
  constexpr std::string_view kMissing = ".bias is missing", kTooMany = "there is no such bias";
  struct {
    std::string_view path, key;
    Json value;
    std::string_view error;
  } const cases[] = {
      {"tiny/cohere", "attention_bias", true, kMissing},
      {"tiny/cohere", "use_qk_norm", true, "q_norm.weight is missing"},
      {"tiny/cohere2", "attention_bias", true, kMissing},
      {"tiny/deepseek_v2_mla", "attention_bias", true, kMissing},
      {"tiny/deepseek_v2_mla", "mlp_bias", true, kMissing},
      {"tiny/deepseek_v3_mla", "attention_bias", true, kMissing},
      {"made/ernie4_5", "use_bias", false, kTooMany},
      {"tiny/falcon_gqa", "bias", true, kMissing},
      {"tiny/falcon_gqa", "num_ln_in_parallel_attn", 1, "input_layernorm.weight is missing"},
      {"tiny/falcon_mqa", "bias", true, kMissing},
      {"tiny/gemma", "attention_bias", true, kMissing},
      {"tiny/gemma2", "attention_bias", true, kMissing},
      {"tiny/gemma3_text", "attention_bias", true, kMissing},
      {"tiny/glm4", "attention_bias", false, kTooMany},
      {"tiny/gpt_neox", "attention_bias", false, kTooMany},
      {"tiny/granite", "attention_bias", true, kMissing},
      {"tiny/granite", "mlp_bias", true, kMissing},
      {"tiny/llama3_rope", "attention_bias", true, kMissing},
      {"tiny/llama3_rope", "mlp_bias", true, kMissing},
      {"tiny/mistral_swa", "attention_bias", true, ""},  // its class has no such key
      {"tiny/olmo2", "attention_bias", true, kMissing},
      {"tiny/opt", "enable_bias", false, kTooMany},
      {"made/qwen2_moe", "qkv_bias", false, kTooMany},
      {"tiny/qwen3", "attention_bias", true, kMissing},
      {"tiny/qwen3_moe", "attention_bias", true, kMissing},
      {"tiny/smollm3_nope", "attention_bias", true, kMissing},
      {"tiny/smollm3_nope", "mlp_bias", true, kMissing},
      {"tiny/stablelm", "use_qkv_bias", true, kMissing},
      {"tiny/starcoder2", "use_bias", false, kTooMany},
  };
  for (const auto& one : cases) {
    const std::string error = ErrorOf(SpecOfCase(std::string(one.path), {{one.key, one.value}}));
    if (one.error.empty()) {
      EXPECT_EQ(error, "") << one.path << " " << one.key;
    } else {
      EXPECT_THAT(error, HasSubstr(std::string(one.error))) << one.path << " " << one.key;
    }
  }
  // LayerNorms of such a model still have theirs.
  const auto norms = [](std::string_view tensor) {
    return !tensor.ends_with(".bias") || tensor.find("norm") != tensor.npos;
  };
  EXPECT_EQ(ErrorOf(SpecOfCase("tiny/starcoder2", {{"use_bias", false}}, norms)), "");
  EXPECT_EQ(ErrorOf(SpecOfCase("tiny/opt", {{"enable_bias", false}}, norms)), "");
}

// Gemma's classes in transformers differ in what they read.
TEST(HfConfigurationTest, GemmasReadTheirOwnKeys) {
  const auto spec = [](const std::string& path, const Json& more) {
    auto read = SpecOfCase(path, more);
    EXPECT_TRUE(read.ok()) << path << ": " << read.status();
    return read.value_or(ModelSpec{});
  };
  const auto activation = [&](const std::string& path, const Json& more) {
    const ModelSpec read = spec(path, more);
    return read.layers.empty() ? Activation::kSilu : read.layers[0].ffn.activation;
  };
  EXPECT_EQ(activation("tiny/gemma", {{"hidden_act", "gelu"}}), Activation::kGeluTanh);
  EXPECT_EQ(activation("tiny/gemma", {{"hidden_act", "relu"}}), Activation::kRelu);
  for (const char* later : {"tiny/gemma2", "tiny/gemma3_text"}) {
    EXPECT_EQ(activation(later, Json::object()), Activation::kGeluTanh);
    EXPECT_EQ(activation(later, {{"hidden_act", "relu"}}), Activation::kGeluTanh);
    EXPECT_EQ(activation(later, {{"hidden_activation", "gelu"}}), Activation::kGelu);
  }
  const Json softcap = {{"attn_logit_softcapping", 20.0}};
  EXPECT_EQ(spec("tiny/gemma2", softcap).layers[0].attention.softcap, 20);
  EXPECT_EQ(spec("tiny/gemma3_text", softcap).layers[0].attention.softcap, 0);
}

// OPTModel.save_pretrained writes names without "model.".
TEST(HfConfigurationTest, OptWithoutAHead) {
  const auto whole = OpenCheckpoint("tests/data/tiny/opt");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto tensors = TensorsOf(**whole, [](const std::string& tensor) {
    return tensor.starts_with("model.") ? tensor.substr(6) : tensor;
  });
  const Folder folder(ConfigOf("opt"), tensors);
  const auto spec = folder.spec(), expected = LoadSpec(**whole);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(spec->tensors.size(), expected->tensors.size());
  for (std::size_t i = 0; i < spec->tensors.size(); ++i) {
    EXPECT_EQ(spec->tensors[i].role, expected->tensors[i].role);
    EXPECT_EQ("model." + NameInFile(spec->tensors[i], 0), NameInFile(expected->tensors[i], 0));
  }
}

// The text model of a folder for several kinds of input is the one that it would be by itself.
TEST(HfConfigurationTest, TextModelsWithinOthers) {
  struct Kind {
    const char* name;    // of a tiny case
    const char* outer;   // model_type
    bool model_outside;  // "model.language_model.layers", else "language_model.model.layers"
  };
  const Kind kinds[] = {{"gemma3_text", "gemma3", false},   {"gemma3_text", "gemma3", true},
                        {"llama", "llava", false},          {"llama", "llava", true},
                        {"mistral_swa", "mistral3", false}, {"mistral_swa", "mistral3", true},
                        {"qwen3", "another", true}};
  for (const auto& [name, outer, outside] : kinds) {
    SCOPED_TRACE(absl::StrCat(name, outside));
    const auto alone = OpenCheckpoint(absl::StrCat("tests/data/tiny/", name));
    ASSERT_TRUE(alone.ok());
    auto tensors = TensorsOf(**alone, [&](const std::string& tensor) {
      if (!outside) return "language_model." + tensor;
      return tensor.starts_with("model.") ? "model.language_model." + tensor.substr(6) : tensor;
    });
    const std::string front = outside ? "model." : "";
    const std::string data(8, '\0');
    tensors.push_back({front + "vision_tower.encoder.weight", "BF16", {2, 2}, data});
    tensors.push_back({front + "vision_tower.encoder.bias", "BF16", {4}, data});
    tensors.push_back({front + "multi_modal_projector.norm.weight", "F32", {2}, data});
    const Json config = {{"model_type", outer}, {"text_config", ConfigOf(name)}};
    const Folder folder(config, tensors);
    const auto spec = folder.spec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(Described(spec), Described(LoadSpec(**alone)));
    const Checkpoint& file = **folder.file();
    ASSERT_EQ(file.tensors().size(), (*alone)->tensors().size());
    for (const Tensor& tensor : (*alone)->tensors()) {
      const Tensor* same = file.FindTensor(tensor.name);
      ASSERT_NE(same, nullptr) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(same->data, tensor.data)) << tensor.name;
    }
    ASSERT_EQ(file.skipped_tensors().size(), 2u);
    EXPECT_EQ(file.skipped_tensors()[0].prefix, "vision_tower.");
    EXPECT_EQ(file.skipped_tensors()[0].count, 2u);
    EXPECT_EQ(file.skipped_tensors()[0].bytes, 16u);
    // Any other tensor is refused, and so is one that is there under two names.
    auto more = tensors;
    more.push_back({"language_model.strange.weight", "BF16", {2, 2}, data});
    EXPECT_THAT(Described(Folder(config, more).spec()), HasSubstr("strange.weight has no meaning"));
    more = tensors;
    more.push_back({"model.norm.weight", "BF16", {4}, data});
    EXPECT_THAT(Described(Folder(config, more).spec()),
                HasSubstr("is also called model.norm.weight"));
    // In a folder of a text model alone these names mean nothing.
    EXPECT_FALSE(Folder(ConfigOf(name), tensors).spec().ok());
  }
}

}  // namespace
}  // namespace flotilla::model
