// DeepSeek V2 and V3: multi-head latent attention, and experts in groups beside one that all rows
// share (modeling_deepseek_v2.py and modeling_deepseek_v3.py of Hugging Face's transformers).
// llama.cpp calls both deepseek2.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "common/types/text.h"
#include "model/architectures/dense.h"
#include "model/rope_frequencies.h"

namespace flotilla::model {
namespace {

enum class Generation : uint8_t { kTwo, kThree };

// Bounds of accepted values, several times those of the published models.
constexpr uint64_t kMaxLatentRank = 4096, kMaxQueryRank = 1 << 16, kMaxDim = 512,
                   kMaxShared = 1 << 10, kMaxWidth = 1 << 20;

// The transformers class makes the norms of latents with this, whatever rms_norm_eps is.
constexpr float kLatentEps = 1e-6f;

void ReadLatent(DenseReader& reader) {
  ConfigReader& in = reader.in();
  const Configuration& configuration = reader.checkpoint().configuration();
  AttentionSpec& attention = reader.attention();
  LatentSpec& latent = attention.latent.emplace();
  latent.norm = {.kind = NormKind::kRms, .eps = kLatentEps};
  latent.query_rank = in.UintOrNone("attention.q_lora_rank", kMaxQueryRank);
  latent.rank = in.Uint("attention.kv_lora_rank", 16, kMaxLatentRank);
  in.Require(latent.rank % 16 == 0, "attention.kv_lora_rank", "is not a multiple of 16");
  const std::string_view rope = reader.hf() ? "attention.rope_length" : "rope.dimension_count";
  latent.rope_dim = in.Uint(rope, 16, kMaxDim);
  in.Require(latent.rope_dim % 16 == 0, rope, "is not a multiple of 16");
  if (reader.hf()) {
    latent.nope_dim = in.Uint("attention.nope_length", 1, kMaxDim);
    attention.value_dim = in.Uint("attention.value_length_mla", 1, kMaxDim);
  } else {
    // Older files state the heads that K and V would have.
    const bool mla = configuration.Has("attention.key_length_mla");
    const uint32_t all = in.Uint(mla ? "attention.key_length_mla" : "attention.key_length",
                                 latent.rope_dim + 1, latent.rope_dim + kMaxDim);
    latent.nope_dim = all - std::min(all, latent.rope_dim);
    attention.value_dim =
        in.Uint(mla ? "attention.value_length_mla" : "attention.value_length", 1, kMaxDim);
  }
  attention.head_dim = latent.nope_dim + latent.rope_dim;
  reader.SetKvHeads(1);
}

// 1 + 0.1 * mscale * ln(factor); `log_factor` is the 0.1 * mscale.
double YarnScale(float factor, double log_factor) {
  return factor <= 1 ? 1 : log_factor * NaturalLog(factor) + 1;
}

// YaRN multiplies the scores, too. llama.cpp's files state only what the scores need, and take both
// numbers to be the same.
void ReadYarn(DenseReader& reader) {
  ConfigReader& in = reader.in();
  const Configuration& configuration = reader.checkpoint().configuration();
  if (!in.status().ok() || configuration.String("rope.scaling.type").value_or("") != "yarn") return;
  const float factor = in.Float("rope.scaling.factor", 1, 1e6, std::nullopt);
  // A GGUF file has the float of 0.1 * mscale_all_dim.
  const auto log_factor = [&](std::string_view key) {
    if (in.FloatOrNone(key, 1e3) == 0) return 0.0f;
    return static_cast<float>(0.1 * configuration.Float(key).value_or(0));
  };
  const float scores = reader.hf() ? log_factor("rope.scaling.mscale_all_dim")
                                   : in.FloatOrNone("rope.scaling.yarn_log_multiplier", 1e3);
  if (!in.status().ok() || scores == 0) return;
  const double scale = YarnScale(factor, scores);
  reader.attention().scale *= static_cast<float>(scale * scale);
  if (!reader.hf() && !configuration.Has("rope.scaling.attn_factor")) {
    reader.spec().ropes[0].magnitude = 1;
  }
}

void Attention(DenseReader& reader) {
  using enum TensorRole;
  using enum Extent;
  const AttentionSpec& attention = reader.attention();
  const LatentSpec& latent = *attention.latent;
  const Bias bias = reader.Stated("attention_bias");
  if (latent.query_rank > 0) {
    reader.Linear(kQueryDown, "attn_q_a", "self_attn.q_a_proj", kHidden, kQueryRank, bias);
    reader.LayerVector(kQueryDownNorm, "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight",
                       kQueryRank);
    reader.Linear(kQuery, "attn_q_b", "self_attn.q_b_proj", kQueryRank, kQueries);
  } else {
    reader.Linear(kQuery, "attn_q", "self_attn.q_proj", kHidden, kQueries);
  }
  reader.Linear(kLatent, "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", kHidden, kLatentKey,
                bias);
  reader.LayerVector(kLatentNorm, "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight",
                     kLatentRank);
  // Hugging Face, and older files of llama.cpp, have one matrix with the K and then the V of each
  // head, whose inputs are the latent.
  if (reader.hf() || reader.Has("attn_kv_b.weight", "")) {
    const int64_t nope = latent.nope_dim, value = attention.value_dim, both = nope + value;
    const auto add = [&](TensorRole role, Extent columns, Extent rows, const RowMap& map) {
      reader.Linear(role, "attn_kv_b", "self_attn.kv_b_proj", columns, rows, Bias::kNever, map,
                    static_cast<uint64_t>(both) * attention.heads, role == kLatentKeys);
    };
    add(kLatentKeys, kNopeDim, kLatentRank, {.run = nope, .stride = both});
    add(kLatentValues, kLatentRank, kValueDim, {.first = nope, .run = value, .stride = both});
  } else {
    reader.Linear(kLatentKeys, "attn_k_b", "", kNopeDim, kLatentRank, Bias::kNever);
    reader.Linear(kLatentValues, "attn_v_b", "", kLatentRank, kValueDim, Bias::kNever);
  }
  reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden, bias);
}

// Whether the file has a bias of the choice of experts.
bool HasChoiceBias(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.tensors(), [](const Tensor& tensor) {
    return tensor.name.ends_with(".exp_probs_b.bias");
  });
}

// What the file says of the choice of experts must be what the generation does.
void CheckChoice(DenseReader& reader, std::string_view key,
                 std::initializer_list<std::string_view> known) {
  const Configuration& configuration = reader.checkpoint().configuration();
  if (!configuration.Has(key)) return;
  const auto value = configuration.String(key);
  if (!value.ok() || std::ranges::count(known, *value) == 0) {
    reader.in().Fail(Unimplemented(configuration.NameOf(key), " = '",
                                   value.value_or("").substr(0, 64), "' is not supported"));
  }
}

// How the router chooses; says whether the file has experts.
bool ReadChoice(DenseReader& reader, Generation generation) {
  ConfigReader& in = reader.in();
  const Configuration& configuration = reader.checkpoint().configuration();
  bool grouped = true;
  if (!reader.hf()) {
    // Files of V2 may not say what they do: 1 is softmax, 2 is sigmoid.
    const bool bias = HasChoiceBias(reader.checkpoint());
    const bool sigmoid = in.Uint("expert_gating_func", 1, 2, bias ? 2 : 1) == 2;
    generation = sigmoid ? Generation::kThree : Generation::kTwo;
  } else if (generation == Generation::kThree) {
    CheckChoice(reader, "topk_method", {"noaux_tc"});
    CheckChoice(reader, "scoring_func", {"sigmoid"});
  } else {
    CheckChoice(reader, "topk_method", {"greedy", "group_limited_greedy"});
    CheckChoice(reader, "scoring_func", {"softmax"});
    grouped = configuration.String("topk_method").value_or("greedy") == "group_limited_greedy";
    // DeepSeek's own code would do it, without the factor; that of transformers does not.
    in.Require(!in.Bool("expert_weights_norm", false), "expert_weights_norm",
               "is not supported in deepseek_v2");
  }
  const bool three = generation == Generation::kThree;
  in.Uint("moe_layer_freq", 1, 1, 1);
  MoeSpec moe{.scores = three ? ExpertScores::kSigmoid : ExpertScores::kSoftmax,
              .normalised = three && reader.hf(),
              .group_pairs = three};
  moe.factor = in.Float("expert_weights_scale", 1e-6, 1e6, 1.0);
  if (grouped) {
    moe.groups = in.Uint("expert_group_count", 1, 256, 1);
    moe.kept_groups = in.Uint("expert_group_used_count", 1, std::max(moe.groups, 1u), 1);
  }
  if (!reader.ReadExperts(moe)) return false;
  if (!in.status().ok()) return true;
  const MoeSpec& read = *reader.layer().moe;
  in.Require(read.experts % read.groups == 0, "expert_count",
             Cat("does not divide into ", read.groups, " groups"));
  const uint32_t size = read.experts / read.groups;
  in.Require(read.groups == 1 || !three || size >= 2, "expert_group_count",
             "leaves one expert to a group");
  in.Require(read.chosen <= read.kept_groups * size, "expert_used_count",
             "is more than the kept groups have");
  return true;
}

void Experts(DenseReader& reader, Bias shared_bias) {
  using enum TensorRole;
  using enum Extent;
  reader.Experts(kQwenExperts);
  const MoeSpec& moe = *reader.layer().moe;
  if (moe.scores == ExpertScores::kSigmoid && (reader.hf() || HasChoiceBias(reader.checkpoint()))) {
    reader.LayerVector(kExpertBias, "exp_probs_b.bias", "mlp.gate.e_score_correction_bias",
                       kExperts);
  }
  if (moe.shared.width == 0) return;
  reader.ExpertLinear(kSharedGate, "ffn_gate_shexp", "mlp.shared_experts.gate_proj", kHidden,
                      kSharedFfn, shared_bias);
  reader.ExpertLinear(kSharedUp, "ffn_up_shexp", "mlp.shared_experts.up_proj", kHidden, kSharedFfn,
                      shared_bias);
  reader.ExpertLinear(kSharedDown, "ffn_down_shexp", "mlp.shared_experts.down_proj", kSharedFfn,
                      kHidden, shared_bias);
}

void ReadDeepSeek(const Checkpoint& checkpoint, ConfigReader& in, Generation generation,
                  ModelSpec& spec) {
  using enum TensorRole;
  using enum Extent;
  DenseReader reader(checkpoint, in, spec);
  ReadLatent(reader);
  const bool experts = ReadChoice(reader, generation);
  reader.ReadSizes(NormKind::kRms);
  in.RefuseIfSet("attention.sliding_window");
  in.Require(in.Bool("rope_interleave", true), "rope_interleave", "= false is not supported");
  reader.FinishExperts();
  const uint32_t shared = experts ? in.UintOrNone("expert_shared_count", kMaxShared) : 0;
  if (!in.status().ok()) return;
  if (reader.hf()) {
    const uint32_t heads = reader.attention().heads;
    in.Uint("attention.head_count_kv", heads, heads, heads);
  }
  if (experts) {
    const uint64_t width = uint64_t{shared} * reader.expert_width();
    in.Require(width <= kMaxWidth, "expert_shared_count",
               "times the width of an expert is above 1048576");
    if (!in.status().ok()) return;
    reader.layer().moe->shared.width = static_cast<uint32_t>(width);
  }
  reader.ReadRope(Pairs::kNeighbours, Pairs::kNeighbours);
  if (!in.status().ok()) return;
  in.Require(2 * spec.ropes[0].frequencies.size() == reader.attention().latent->rope_dim,
             "rope.dimension_count", "is not that of the rotated part of a head");
  ReadYarn(reader);
  reader.Embedding("model.embed_tokens");
  reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
  Attention(reader);
  reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
  // In V2 it is also that of the shared experts, but not of the others.
  const Bias bias = generation == Generation::kTwo ? reader.Stated("mlp_bias") : Bias::kUsual;
  reader.Linear(kGate, "ffn_gate", "mlp.gate_proj", kHidden, kFfn, bias);
  reader.Linear(kUp, "ffn_up", "mlp.up_proj", kHidden, kFfn, bias);
  reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden, bias);
  if (experts) Experts(reader, bias);
  reader.Norm(kOutputNorm, "output_norm", "model.norm");
  reader.Head("lm_head");
  reader.Finish();
  // Layers behind the last predict further tokens.
  const uint32_t more = reader.hf() ? in.UintOrNone("nextn_predict_layers", 16) : 0;
  for (uint32_t i = 0; i < more; ++i) {
    spec.unused_tensors.push_back(Cat("model.layers.", spec.layers.size() + i, "."));
  }
}

}  // namespace

extern const Architecture kDeepSeek2 = {
    "deepseek_v2", "deepseek2",
    [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDeepSeek(checkpoint, in, Generation::kTwo, spec);
    }};

extern const Architecture kDeepSeek3 = {
    "deepseek_v3", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDeepSeek(checkpoint, in, Generation::kThree, spec);
    }};

}  // namespace flotilla::model
