// Random numbers for sampling. They are pure functions of (the sequence's seed, index of
// the output token, token id). No generator has a state, so a token's noise does not
// depend on the batch, on a restart or on the rank that holds its logit.
#pragma once

#include <cstdint>

#include "kernels/scalar_math.h"

namespace flotilla::kernels {

// The mix of all inputs but the token id.
struct NoiseKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

// splitmix64's finalizer: a bijection of 64 bits.
FLOTILLA_HOST_DEVICE inline uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The key of one sampled token: `seed` of its sequence (SequenceSeed), `index` of
// the token among the sequence's output tokens.
FLOTILLA_HOST_DEVICE inline NoiseKey MakeNoiseKey(uint64_t seed, uint64_t index) {
  const uint64_t key = Mix64(Mix64(Mix64(seed)) ^ index);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// murmur3's 32-bit finalizer.
FLOTILLA_HOST_DEVICE inline uint32_t Mix32(uint32_t h) {
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return h ^ (h >> 16);
}

FLOTILLA_HOST_DEVICE inline uint32_t NoiseHash(NoiseKey key, uint32_t token) {
  return Mix32(Mix32(token * 0x9E3779B1u ^ key.low) ^ key.high);
}

// Uniform in (0, 1): an odd multiple of 2^-24, exact in fp32, never 0 or 1.
FLOTILLA_HOST_DEVICE inline float NoiseUniform(NoiseKey key, uint32_t token) {
  return static_cast<float>(static_cast<int32_t>(NoiseHash(key, token) >> 8 | 1u)) * 0x1p-24f;
}

// Standard Gumbel noise -log(-log u): arg max of (logit / T + noise) samples from
// softmax(logits / T).
FLOTILLA_HOST_DEVICE inline float GumbelNoise(NoiseKey key, uint32_t token) {
  return -Log(-Log(NoiseUniform(key, token)));
}

}  // namespace flotilla::kernels
