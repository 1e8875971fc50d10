// The frequencies of rotary embeddings. They are computed by arithmetic of our own rather than
// libm's, so that their bits do not depend on the C library.
#pragma once

#include <cstdint>
#include <vector>

namespace flotilla::model {

// Returns base^(-2i/dim) for the pairs i = 0 .. dim/2 - 1. As in the reference implementation
// (Hugging Face), the exponent and the frequency are rounded to fp32.
std::vector<float> RopeFrequencies(uint32_t dim, double base);

}  // namespace flotilla::model
