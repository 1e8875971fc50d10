// RopeTable: the cosines and sines of rotary embedding, computed once at load. The table
// is immutable afterwards, and any thread may read it. It uses its own arithmetic rather
// than libm, so that its bits do not depend on the C library.
#pragma once

#include "absl/types/span.h"
#include "common/rt/aligned_buffer.h"

namespace flotilla::kernels {

class RopeTable {
 public:
  // Computes positions 0 .. positions - 1 for twice as many elements of a head as there are
  // frequencies, filled up to a multiple of 16 with elements that are not rotated. As in the
  // reference implementation (Hugging Face), the angle is rounded to fp32 before the cosine is
  // taken, and cosine and sine are multiplied by the magnitude in fp32.
  RopeTable(int positions, absl::Span<const float> frequencies, float magnitude = 1);

  // [positions, dim] fp32: row p holds cos[dim/2], then sin[dim/2].
  const float* data() const { return data_.data(); }
  int positions() const { return positions_; }
  int dim() const { return dim_; }  // multiple of 16

 private:
  int positions_;
  int dim_;
  AlignedBuffer<float> data_;
};

}  // namespace flotilla::kernels
