// GroupedTensor: what the methods of quantised folders have in common. A weight is
//   scale * (code - zero)   or   scale * table value   in fp32,
// where rows have a scale, and perhaps a zero, for each group of k.
//
// Methods say where codes, scales and zeros lie; a GroupedTensor reads them as the encoding that a
// packed kind keeps (common/types/weight_panel.h). Where groups or scales fit no kind, it reads the
// weights in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/types/weight_panel.h"
#include "model/composite_tensor.h"
#include "model/tensor.h"

namespace flotilla::model {

// Elements of a file are not aligned.
template <typename T>
T LoadElement(std::span<const std::byte> data, int64_t index) {
  T value;
  std::memcpy(&value, data.data() + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

// Numbers of a tensor by row and group: element row / rows_each * row_step + group * group_step.
struct NumberGrid {
  std::span<const std::byte> data;
  // F32, F16, BF16, F8_E4M3, or F8_E8M0 and U8: an exponent e of 2^(e - 127).
  GgmlType type = GgmlType::kF32;
  int64_t row_step = 0;
  int64_t group_step = 0;
  int64_t rows_each = 1;

  // In fp32, exact. An exponent that has no number gives no number.
  float At(int64_t row, int64_t group) const;
};

// Integers of `bits` bits, at most 8, that follow each other in words of 32 bits, the lowest bits
// first. An integer may lie in two words. Word w of line l is at l * line_step + w * word_step.
struct BitGrid {
  std::span<const std::byte> words;
  int bits = 4;
  int64_t line_step = 0;
  int64_t word_step = 1;

  int At(int64_t line, int64_t i) const {
    const int64_t bit = i * bits, word = line * line_step + bit / 32 * word_step;
    const auto shift = static_cast<int>(bit % 32);
    uint64_t both = LoadElement<uint32_t>(words, word);
    if (shift + bits > 32) both |= uint64_t{LoadElement<uint32_t>(words, word + word_step)} << 32;
    return static_cast<int>(both >> shift & ((1u << bits) - 1));
  }
};

class GroupedTensor : public CompositeTensor {
 public:
  // What a matrix is, beside where its numbers lie.
  struct Shape {
    std::string format;  // for people
    int64_t rows = 0;
    int64_t inputs = 0;
    int64_t group = 0;           // the k of a group, the last of which may be shorter
    std::vector<int32_t> order;  // [inputs] the group of each k; empty: k / group
  };

  std::string_view format() const final { return format_; }
  const WeightEncoding& encoding() const final { return encoding_; }
  int64_t rows() const final { return shape_.rows; }
  std::span<const std::span<const std::byte>> parts() const final { return parts_; }
  void Read(int64_t row, int64_t k_begin, int64_t k_end, WeightRow& out) const final;

 protected:
  // `encoding` is what the codes are like; scales of fp16 and bf16 are numbers of such a tensor.
  GroupedTensor(Shape shape, const WeightEncoding& encoding,
                std::vector<std::span<const std::byte>> parts);

  // Codes as the encoding has them, or, if weights are read in fp32, as ValueOf takes them.
  virtual void ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const = 0;
  virtual float ScaleOf(int64_t row, int64_t group) const = 0;
  virtual int ZeroOf(int64_t, int64_t) const { return 0; }
  virtual float ValueOf(int code, int zero) const { return static_cast<float>(code - zero); }

  const Shape& shape() const { return shape_; }

 private:
  int64_t GroupOf(int64_t k) const {
    return shape_.order.empty() ? k / shape_.group : shape_.order[static_cast<size_t>(k)];
  }

  const Shape shape_;
  const WeightEncoding encoding_;
  const std::vector<std::span<const std::byte>> parts_;
  std::string format_;  // says it if weights are read in fp32
};

// A matrix of integers, as GPTQ, AWQ and compressed-tensors have them.
class IntegerTensor final : public GroupedTensor {
 public:
  struct Parts {
    BitGrid codes;
    bool lines_are_inputs = false;  // the lines of `codes` are k, and rows lie along them
    NumberGrid scales;
    // By group and row; without words each zero is 2^(bits - 1). A zero is what the file has plus
    // `zero_offset`.
    BitGrid zeros;
    int zero_offset = 0;
    // If not null, the place of row % 8 in a word, of codes and zeros.
    const int8_t (*places)[8] = nullptr;
    std::vector<std::span<const std::byte>> data;
  };
  IntegerTensor(Shape shape, Parts parts);

 protected:
  void ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const override;
  float ScaleOf(int64_t row, int64_t group) const override;
  int ZeroOf(int64_t row, int64_t group) const override;

 private:
  IntegerTensor(Shape shape, Parts parts, const WeightEncoding& encoding);
  static WeightEncoding EncodingFor(const Shape& shape, const Parts& parts);
  static int StoredZero(const Parts& parts, int64_t row, int64_t group);
  static int64_t Place(const Parts& parts, int64_t row) {
    return parts.places == nullptr ? row : row / 8 * 8 + (*parts.places)[row % 8];
  }

  const Parts at_;
  const int offset_;  // what codes and zeros of the encoding are less than those of the file
};

// A matrix of bytes, row by row: int8, perhaps with zeros, or FP8.
class ByteTensor final : public GroupedTensor {
 public:
  enum class Bytes { kInt8, kFp8 };
  // `zeros` are int8 by row and group, as `scales` are; empty: there are none. `activations` count
  // where the encoding has codes, and a row one scale.
  ByteTensor(Shape shape, Bytes bytes, std::span<const std::byte> codes, const NumberGrid& scales,
             std::span<const std::byte> zeros, const ActivationScheme& activations,
             std::vector<std::span<const std::byte>> parts);
  // LLM.int8: scales are divided by 127.
  ByteTensor(Shape shape, std::span<const std::byte> codes, const NumberGrid& row_maxima,
             std::vector<std::span<const std::byte>> parts);

  WeightEncoding fast_encoding() const override;

 protected:
  void ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const override;
  float ScaleOf(int64_t row, int64_t group) const override;
  int ZeroOf(int64_t row, int64_t group) const override;
  float ValueOf(int code, int zero) const override;

 private:
  const Bytes bytes_;
  const std::span<const std::byte> codes_;
  const NumberGrid scales_;
  const std::span<const std::byte> zeros_;
  const ActivationScheme activations_;
  const float divisor_ = 1;
};

// A matrix of FP4 (E2M1), two in a byte, the even element in the low nibble: NVFP4 and MXFP4.
class Fp4Tensor final : public GroupedTensor {
 public:
  // Scales are divided by `divisor`.
  Fp4Tensor(Shape shape, std::span<const std::byte> codes, const NumberGrid& scales, float divisor,
            std::vector<std::span<const std::byte>> parts);

 protected:
  void ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const override;
  float ScaleOf(int64_t row, int64_t group) const override;

 private:
  const std::span<const std::byte> codes_;
  const NumberGrid scales_;
  const float divisor_;
};

}  // namespace flotilla::model
