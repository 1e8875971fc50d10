// What dense decoders have in common. A family of models reads its sizes with a DenseReader, says
// how it differs, and lists its tensors. Families that call everything as Llama does use ReadDense.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/architectures/architecture.h"

namespace flotilla::model {

// A bound of numbers of positions, many times those of the longest published context.
inline constexpr uint64_t kMaxContext = 1 << 24;

// How the pairs of a head that RoPE turns are ordered in a file.
enum class Pairs : uint8_t {
  kNeighbours,  // (0, 1), (2, 3) ...
  kHalves,      // (0, n / 2), (1, n / 2 + 1) ...
};

// Whether a linear layer has a bias. The configuration of a folder decides it, as in transformers:
// kUsual is what SetLinearBias says. A file of llama.cpp has no key for it: kUsual is then
// whether the file has the tensor.
enum class Bias : uint8_t { kUsual, kAlways, kNever };

// How q, k and v lie in one tensor.
enum class FusedQkv : uint8_t {
  kSections,  // all q, all k, all v
  kGroups,    // for each KV head its q, its k, its v
};

// What a family calls the tensors of its experts in Hugging Face's files.
struct ExpertNames {
  std::string_view router, gate, up, down;  // "#" stands for the expert
};

inline constexpr ExpertNames kMixtralExperts = {.router = "block_sparse_moe.gate",
                                                .gate = "block_sparse_moe.experts.#.w1",
                                                .up = "block_sparse_moe.experts.#.w3",
                                                .down = "block_sparse_moe.experts.#.w2"};
inline constexpr ExpertNames kQwenExperts = {.router = "mlp.gate",
                                             .gate = "mlp.experts.#.gate_proj",
                                             .up = "mlp.experts.#.up_proj",
                                             .down = "mlp.experts.#.down_proj"};

// Failures go to the ConfigReader; after one, calls do nothing that matters.
class DenseReader {
 public:
  // `hf_layer` is what Hugging Face puts before the names of a layer's tensors, and llama.cpp puts
  // "blk.*.".
  DenseReader(const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec,
              std::string_view hf_layer = "model.layers.*.");

  bool hf() const { return checkpoint_.naming() == Naming::kHuggingFace; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  ConfigReader& in() { return in_; }
  ModelSpec& spec() { return spec_; }
  // What all layers are like until Finish makes them of it.
  LayerSpec& layer() { return layer_; }
  AttentionSpec& attention() { return layer_.attention; }

  // Sizes, and eps of norms of this kind, under the usual keys, but not those of heads where the
  // attention has a latent; the layer's activation, if the file says it. Where the file does not
  // say the FFN's width, it is `ffn_factor` times the hidden size (0: the file must).
  void ReadSizes(NormKind norms, uint32_t ffn_factor = 0);
  // The layer's activation, if the file states one under this key.
  void ReadActivation(std::string_view key = "feed_forward.activation");
  // Layers get experts in place of their FFN, as `moe` says, with the numbers that the file has.
  // Call this before ReadSizes, which else refuses experts, and FinishExperts after it, which finds
  // the layers without experts. False: the file has no experts.
  bool ReadExperts(const MoeSpec& moe);
  // `activation` is that of the experts; none: that of the layer.
  void FinishExperts(std::optional<Activation> activation = std::nullopt);
  // RoPE with the file's scaling. `hf` and `llama_cpp` say how their files order pairs. A second
  // RoPE of base `local_base` follows, which is not scaled, if that is not 0.
  void ReadRope(Pairs hf, Pairs llama_cpp, float local_base = 0);
  // The window of attention, if the file has one. In each `period` of layers the last sees
  // everything; 0: none does. A list in the file counts more.
  void ReadWindow(uint32_t period);
  // Makes the layers. Call ReadWindow first.
  void Finish();

  // Rows of the tensor table. Names have no suffix; those of layers come without their beginning.
  // The bias of a role is the role that follows it.
  TensorRow& Add(TensorRole role, std::string llama_cpp, std::string hugging_face, Extent columns,
                 Extent rows = Extent::kOne);
  bool Has(std::string_view llama_cpp, std::string_view hugging_face) const;
  void Embedding(std::string_view hugging_face);
  // `hf_bias` is whether folders have a bias.
  void Head(std::string_view hugging_face, bool hf_bias = false);
  void Norm(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face);
  // Bias::kUsual of folders; at first they have none.
  void SetLinearBias(bool biased) { linear_bias_ = biased; }
  // Whether LayerNorms of folders have a bias; at first they do.
  void SetNormBias(bool biased) { norm_bias_ = biased; }
  // What a folder's configuration says under a key, or what its class does if it does not.
  Bias Stated(std::string_view key, bool otherwise = false);
  // Tensors that files may hold and that the model does not need. `*` stands for a layer.
  void Unused(std::initializer_list<std::string> names);
  void LayerNorm(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face);
  // Returns nothing: a row may move.
  void Linear(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
              Extent columns, Extent rows, Bias bias = Bias::kUsual, const RowMap& map = {},
              uint64_t rows_in_file = 0, bool transposed = false);
  void Qkv(std::string_view hf_query, std::string_view hf_key, std::string_view hf_value,
           Bias bias = Bias::kUsual);
  void Fused(std::string_view llama_cpp, std::string_view hugging_face, FusedQkv hf_layout,
             Bias bias = Bias::kUsual, bool transposed = false);
  // Gate and up in one tensor, gate first, which llama.cpp calls ffn_up.
  void FusedGateUp(std::string_view hugging_face);
  // A weight of each expert, and its bias if the file has one: of names with a '#' a tensor for
  // each, else one tensor for all. A name that llama.cpp's older files have is found by itself.
  void ExpertLinear(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
                    Extent columns, Extent rows, Bias bias = Bias::kUsual);
  // A vector of each layer, whose name has its suffix.
  void LayerVector(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
                   Extent columns);
  // The columns of an expert; 0: there are none.
  uint32_t expert_width() const { return layer_.moe.has_value() ? layer_.moe->expert.width : 0; }
  // The router and all weights of the experts: in tensors of these names, or in two for all experts
  // of a layer, the rows of gate before those of up in the first.
  void Experts(const ExpertNames& names, Bias bias = Bias::kUsual);
  // The weights of norms of q and k.
  void HeadNormRows(Extent query, Extent key);
  // Those of HeadNorms::kOwn.
  void OwnHeadNormRows();

  // What the norms of Hugging Face's files lack: their weights are this much less.
  void SetNormPlus(float plus) { norm_plus_ = plus; }
  // What ReadSizes does not read then.
  void SetKvHeads(uint32_t kv_heads) { kv_heads_ = kv_heads; }
  void SetNormEps(float eps) { norm_eps_ = eps; }
  void SetYarnTruncate(bool truncate) { yarn_truncate_ = truncate; }  // where the file is silent

 private:
  RopeSpec ReadScaledRope(uint32_t dim);
  // The file has such a tensor: a row of the table.
  void DivideByTensor(std::string_view name, std::vector<float>& frequencies);
  RowMap PairsMap() const;
  std::string LayerName(std::string_view llama_cpp, std::string_view hugging_face) const;
  void AddNorm(TensorRole role, std::string name);
  bool HasBias(Bias bias, bool in_file) const;
  // Whether the first layer with experts has the tensor.
  bool HasInExperts(const std::string& name) const;

  const Checkpoint& checkpoint_;
  ConfigReader& in_;
  ModelSpec& spec_;
  const std::string hf_layer_;
  LayerSpec layer_;
  uint32_t layers_ = 0;
  uint32_t rope_dim_ = 0;
  bool halves_ = false;  // in this file
  float norm_plus_ = 0;
  uint32_t kv_heads_ = 0;                        // 0: as in the file
  bool linear_bias_ = false, norm_bias_ = true;  // of folders
  float norm_eps_ = 0;                           // 0: as in the file
  uint32_t window_ = 0, window_period_ = 0;
  bool yarn_truncate_ = true;
  std::vector<bool> has_experts_;  // by layer, if any has
};

// How a family differs from Llama.
struct DenseOptions {
  NormKind norms = NormKind::kRms;
  Pairs llama_cpp_pairs = Pairs::kHalves;
  Pairs hf_pairs = Pairs::kHalves;
  Activation activation = Activation::kSilu;
  // Keys of a folder's configuration that say whether q, k and v, the output of attention and the
  // FFN have biases; empty: they have none.
  std::string_view qkv_bias_key = {}, output_bias_key = {}, ffn_bias_key = {};
  bool qkv_bias = false;    // where the configuration does not say it, and in files of llama.cpp
  bool head_norms = false;  // of each head, with one weight
  float norm_plus = 0;      // DenseReader::SetNormPlus
  bool has_window = false;  // whether the family knows windows
  uint32_t window_period = 0;
  // Of files with experts; without a router the family has none.
  ExpertNames experts = {};
  bool normalised = false;  // MoeSpec::normalised
};

// Reads what calls everything as Llama does, and makes the layers. UNIMPLEMENTED goes to `in` for
// unknown scalings of RoPE, and for experts where the family has none.
void ReadDense(const Checkpoint& checkpoint, ConfigReader& in, const DenseOptions& options,
               ModelSpec& spec);

}  // namespace flotilla::model
