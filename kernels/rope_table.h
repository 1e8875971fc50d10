// RopeTable: the cosines and sines of rotary embedding, computed once at load. The table
// is immutable afterwards, and any thread may read it. It uses its own arithmetic rather
// than libm, so that its bits do not depend on the C library.
#pragma once

#include <vector>

namespace flotilla::kernels {

class RopeTable {
 public:
  // Computes positions 0 .. positions - 1 for heads of `dim` (even) with frequencies
  // base^(-2i/dim). As in the reference implementation (Hugging Face), frequency and angle
  // are rounded to fp32 before the cosine is taken.
  RopeTable(int positions, int dim, double base);

  // [positions, dim] fp32: row p holds cos[dim/2], then sin[dim/2].
  const float* data() const { return data_.data(); }
  int positions() const { return positions_; }
  int dim() const { return dim_; }

 private:
  int positions_;
  int dim_;
  std::vector<float> data_;
};

}  // namespace flotilla::kernels
