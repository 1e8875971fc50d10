// Values for tests of FleetCore: descriptions, requests, and who submits them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/types/engine.h"
#include "tests/support/requests.h"

namespace flotilla::router {

// The owner of requests; nothing is posted to it here.
class Owner final : public EventSink {
 public:
  void Post(std::vector<EngineEvent>) override { FAIL() << "the core does not post"; }
};

inline EngineDescription Description(const std::string& model = "m", std::uint64_t numerics = 1,
                                     std::uint64_t tokenizer = 9) {
  EngineDescription description;
  description.model_id = model;
  description.vocab_size = 1000;
  description.max_context = 100;
  description.tokenizer_hash = tokenizer;
  description.numerics_id = numerics;
  description.max_sequences = 4;
  description.max_queue_tokens = 500;
  return description;
}

inline TokenizedRequest Request(std::uint64_t number, std::uint32_t attempt = 0) {
  TokenizedRequest request = testing::TestRequest({1, number}, {1, 2, 3}, 10);
  request.attempt = Attempt(attempt);
  if (attempt > 0) request.output_prefix = {{7, 8}};
  return request;
}

}  // namespace flotilla::router
