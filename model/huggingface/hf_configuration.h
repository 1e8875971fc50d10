// config.json as a configuration: the keys of llama.cpp, found under Hugging Face's names.
//
// Old and new files are read: numbers of RoPE stand beside the others (`rope_theta`,
// `rope_scaling`) or in `rope_parameters`, and models of several kinds of input have those of their
// text in `text_config`. A key that the file lacks has the default of the class of transformers,
// and one that is null has none. Immutable; any thread may read it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/configuration.h"
#include "model/huggingface/json_file.h"
#include "model/huggingface/quantization/quantization.h"

namespace flotilla::model {

class HfConfiguration final : public Configuration {
 public:
  // `config` is the object of config.json, and `title` the model's name for people.
  HfConfiguration(Json config, std::string title);
  HfConfiguration(const HfConfiguration&) = delete;
  HfConfiguration& operator=(const HfConfiguration&) = delete;

  absl::StatusOr<std::string_view> architecture() const override;
  std::string_view title() const override { return title_; }
  std::string NameOf(std::string_view key) const override;
  bool Has(std::string_view key) const override;
  absl::StatusOr<uint64_t> Uint(std::string_view key) const override;
  absl::StatusOr<double> Float(std::string_view key) const override;
  absl::StatusOr<std::string_view> String(std::string_view key) const override;
  absl::StatusOr<bool> Bool(std::string_view key) const override;
  absl::StatusOr<std::vector<double>> Numbers(std::string_view key) const override;

  // Everything, for people.
  const Json& all() const { return config_; }
  // How the folder's weights are quantised. architecture() gives its errors.
  const absl::StatusOr<Quantization>& quantization() const { return quantization_; }
  // Whether the text model is a part of a model for several kinds of input.
  bool is_part() const { return text_ != &config_; }

 private:
  using NameList = std::array<std::string_view, 4>;  // empty ones behind the others
  // Those of the names of a key that count for this class, in the order in which they do.
  NameList OwnNames(std::string_view key, std::span<const std::string_view, 4> names) const;
  // The value of a key; null if the file has none and the class neither, or if it says null.
  const Json* Find(std::string_view key) const;
  // The same of the first of these names in the text model's object. A null that the class would
  // take for a boolean is false.
  const Json* FindText(std::span<const std::string_view> names) const;
  void ReadPartOfHead();
  void CheckNulls();

  const Json config_;
  const std::string title_;
  const absl::StatusOr<Quantization> quantization_;
  const Json* text_;       // the object that describes the text model
  std::string_view type_;  // its model_type; empty: the file does not say it
  Json defaults_;          // ClassDefaults of the type
  const Json false_ = false;
  const Json* rope_;  // the object with the numbers of RoPE's scaling; null: there is none
  const Json* local_rope_ = nullptr;  // the same for layers with a window; null: it has none
  uint64_t rope_dimension_ = 0;       // 0: the file does not say it
  std::string problem_;               // why architecture() refuses the file; empty: nothing
};

}  // namespace flotilla::model
