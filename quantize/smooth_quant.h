// SmoothQuant (Xiao et al., 2022, arXiv 2211.10438): a few inputs are much larger than the others,
// and with one scale for all inputs of a token they leave few of its codes to the rest. They are
// made smaller, by what makes them, and the weights of their columns larger by as much, so that the
// model computes the same.
#pragma once

#include <span>
#include <vector>

#include "quantize/awq.h"
#include "quantize/importance.h"

namespace flotilla::quantize {

// What the columns of matrices with the same inputs are multiplied by: of input j
//   max |x_j|^alpha / max |w_j|^(1 - alpha)
// over all rows that calibration has seen, and the rows of all matrices. 1 where either is 0. Each
// factor is a number of bf16.
std::vector<float> SmoothFactors(std::span<const FloatMatrix> matrices,
                                 const Importance& importance, double alpha);

}  // namespace flotilla::quantize
