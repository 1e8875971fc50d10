// Encodes blocks of 256 weights as ggml's K quants. Pure functions.
//
// The layouts are those of ggml (docs/formats.md has what a weight is). There is no calibration,
// so the squared error of a weight x counts as ggml's reference weights it:
//
//   Q4_K  |x| + the root of the mean square of the 32 weights around it
//   Q6_K  x^2
//
// The search is our own. Each group gets the scale (and the minimum) with the least error among
// several widths of the step, by weighted least squares. The block then gets its fp16 scales, the
// groups their integer factors, and both are refined by turns while the error falls. Sums have one
// order, so equal weights give equal bytes.
#pragma once

#include <cstddef>
#include <span>

namespace flotilla::quantize {

inline constexpr size_t kKBlock = 256;  // weights of a block

// Writes the block that stands for the weights, which are all finite. False: the weights are too
// large for scales in fp16.
bool EncodeQ4_K(std::span<const float, kKBlock> weights, std::span<std::byte, 144> block);
bool EncodeQ6_K(std::span<const float, kKBlock> weights, std::span<std::byte, 210> block);

}  // namespace flotilla::quantize
