// Quantised matrices as compressed-tensors has them in a Hugging Face folder ("pack-quantized",
// compressed-tensors 0.20): codes follow each other in words of 32 bits without gaps, each 2^(bits
// - 1) above itself, along the inputs; zeros do so along the rows. Weights for activations of 8
// bits are "int-quantized": bytes, and a scale for each row.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/huggingface/json_file.h"
#include "model/huggingface/quantization/quantization.h"
#include "model/huggingface/safetensors_writer.h"
#include "quantize/integer_matrix.h"

namespace flotilla::quantize {

// The tensors of quantised layers, and their bytes.
class CompressedLayers {
 public:
  CompressedLayers() = default;
  CompressedLayers(const CompressedLayers&) = delete;
  CompressedLayers& operator=(const CompressedLayers&) = delete;

  // Adds the layer whose float matrix would be `name` with ".weight".
  void Add(std::string_view name, const IntegerMatrix& matrix);
  // The same of codes of 8 bits without zeros, each row a group, as bytes.
  void AddBytes(std::string_view name, const IntegerMatrix& matrix);

  // Adds a tensor of another layout.
  void AddTensor(std::string name, model::GgmlType type, std::vector<uint64_t> shape,
                 std::vector<std::byte> bytes);

  // They live as long as this object.
  std::span<const model::SafetensorsEntry> entries() const { return entries_; }

 private:
  void AddScales(std::string_view name, const IntegerMatrix& matrix);

  std::deque<std::vector<std::byte>> bytes_;
  std::vector<model::SafetensorsEntry> entries_;
};

// The object quantization_config of such a folder. `group` is the size of a group; 0: each row is
// one. `ignored` are the names of linear layers that stay as they are. With `int8_activations` the
// layers are bytes, and multiply activations of 8 bits, dynamic per token.
model::Json CompressedConfig(const Grid& grid, int64_t group,
                             const std::vector<std::string>& ignored,
                             bool int8_activations = false);

// The matrices of layers as the folder's reader makes them of the tensors, named with ".weight".
// What they show lives as long as the layers.
absl::StatusOr<std::unique_ptr<model::FolderTensors>> ReadCompressed(const CompressedLayers& layers,
                                                                     const model::Json& config);

}  // namespace flotilla::quantize
