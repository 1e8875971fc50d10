#include "worker/exec/constrained_proposer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace flotilla::worker {

void ConstrainedProposer::Propose(absl::Span<DraftRequest> requests) {
  proposer_->Propose(requests);
  std::vector<DraftRequest*> constrained;
  for (DraftRequest& request : requests) {
    if (request.sampling->constraint && !request.drafts.empty()) constrained.push_back(&request);
  }
  if (constrained.empty()) return;
  const std::size_t ranks = communicator_ == nullptr ? 1 : communicator_->shape().ranks();
  const std::size_t rank = communicator_ == nullptr ? 0 : communicator_->rank();
  std::vector<const DraftRequest*> own;
  for (std::size_t i = rank; i < constrained.size(); i += ranks) own.push_back(constrained[i]);
  const std::vector<std::size_t> found = constraints_.CheckDrafts(own);
  const std::vector<std::uint32_t> counts(found.begin(), found.end());

  // Trims the drafts that rank `of` has checked to the counts in its metadata. Those of a rank that
  // has failed mean nothing, and neither does the step.
  const auto trim = [&](std::size_t of, absl::Span<const std::byte> metadata) {
    for (std::size_t i = of; i < constrained.size(); i += ranks) {
      std::uint32_t count = 0;
      if (metadata.size() < sizeof count) return;
      std::memcpy(&count, metadata.data(), sizeof count);
      metadata.remove_prefix(sizeof count);
      std::vector<TokenId>& drafts = constrained[i]->drafts;
      drafts.resize(std::min<std::size_t>(count, drafts.size()));
    }
  };
  const absl::Span<const std::byte> mine(reinterpret_cast<const std::byte*>(counts.data()),
                                         counts.size() * sizeof(std::uint32_t));
  if (communicator_ == nullptr) return trim(0, mine);
  communicator_->SendMetadata(mine);
  const absl::Span<const std::vector<std::byte>> all = communicator_->TakeMetadata();
  for (std::size_t of = 0; of < all.size(); ++of) trim(of, all[of]);
}

}  // namespace flotilla::worker
