// The frequencies of rotary embeddings. They are computed by arithmetic of our own rather than
// libm's, so that their bits do not depend on the C library.
#pragma once

#include <cstdint>
#include <vector>

namespace flotilla::model {

// Returns base^(-2i/dim) for the pairs i = 0 .. dim/2 - 1. As in the reference implementation
// (Hugging Face), the exponent and the frequency are rounded to fp32.
std::vector<float> RopeFrequencies(uint32_t dim, double base);

// The scaling of Llama 3.1 (Hugging Face's modeling_rope_utils.py): frequencies whose waves are
// long beside the context of training are divided by `factor`, short ones stay, and those between
// are mixed.
struct Llama3Scaling {
  float factor = 1;
  float low_freq_factor = 1;
  float high_freq_factor = 4;  // above low_freq_factor
  float original_context = 8192;
};
void ScaleAsLlama3(const Llama3Scaling& scaling, std::vector<float>& frequencies);

// YaRN (arXiv 2309.00071, as in modeling_rope_utils.py): pairs that turn more than beta_fast times
// in the original context stay, those that turn less than beta_slow times are divided by `factor`,
// and those between are mixed. `truncate` rounds the ends of the mixture to whole pairs.
struct YarnScaling {
  float factor = 1;
  float beta_fast = 32;
  float beta_slow = 1;
  float original_context = 4096;
  bool truncate = true;
};
void ScaleAsYarn(const YarnScaling& scaling, double base, std::vector<float>& frequencies);

// Dynamic NTK scaling (modeling_rope_utils.py) for a context of `served` positions, at least
// `trained`: the base by which `base` is replaced, which is `base` where they are equal. `dim` is
// at least 4.
struct DynamicScaling {
  double factor = 1;  // at least 1
  double trained = 2048;
  double served = 2048;
};
double DynamicBase(const DynamicScaling& scaling, uint32_t dim, double base);

// Natural logarithm of x > 0, for the magnitudes of rotations.
double NaturalLog(double x);

}  // namespace flotilla::model
