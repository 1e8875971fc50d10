// Checks the communicator and exchange of one rank of a job. Every number that another rank has
// sent arrives, in order, in steps like those of a RankRunner. Exits with 0, or prints what was
// wrong.
//
// communicator_check TRANSPORT TENSOR PIPELINE; started by communicator_test.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "worker/comm/mpi_communicator.h"
#include "worker/comm/share_region.h"
#include "worker/comm/shared_memory_communicator.h"

namespace flotilla::worker {
namespace {

constexpr std::uint32_t kSteps = 150;
constexpr std::int64_t kVocab = 1000, kRows = 9, kResidual = 70'000, kPart = 50'000;
// Larger than what MPI sends before the receiver asks for it.
constexpr std::int64_t kMetadata = 100'000;

std::uint32_t Mix(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint64_t x = (std::uint64_t{a} * 1'000'003 + b) * 1'000'033 + c;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9;
  return static_cast<std::uint32_t>(x >> 33);
}
// Returns the number that rank `rank` sends at place `i` in a step.
float Say(std::uint32_t step, std::uint32_t rank, std::int64_t i) {
  return static_cast<float>(Mix(step, rank, static_cast<std::uint32_t>(i)) % 1'000'000);
}

class Check {
 public:
  Check(Communicator* ranks, Exchange* exchange) : ranks_(*ranks), exchange_(*exchange) {}

  void Run() {
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const ParallelShape shape = ranks_.shape();
      // At most as many steps as there are stages may have metadata that is not taken.
      if (untaken_ == shape.pipeline) TakeMetadata();
      if (!ranks_.first_stage()) Receive(step);
      for (std::uint32_t layer = 0; layer < 5 && shape.tensor > 1; ++layer) {
        SharePartials(100 * step + layer);
      }
      if (!ranks_.last_stage()) {
        Send(step);
      } else if (shape.tensor > 1) {
        ShareLogits(step);
      }
      SendMetadata(step);
      ++untaken_;
      if (ranks_.last_stage()) TakeMetadata();
      // Calls Progress as a rank does while it waits for its next plan. It does not call it until
      // all is sent, because other ranks may need this rank first.
      for (std::uint32_t looks = Mix(step, ranks_.rank(), 7) % 5; looks > 0; --looks) {
        ranks_.Progress();
      }
    }
    while (untaken_ > 0) TakeMetadata();
    while (ranks_.Progress()) {
    }
  }

 private:
  void Expect(bool holds, const char* what, std::uint32_t step) {
    if (holds) return;
    std::printf("rank %u, step %u: %s\n", ranks_.rank(), step, what);
    std::exit(1);
  }

  std::uint32_t Neighbour(std::uint32_t t) const {
    return ranks_.rank() - ranks_.tensor_rank() + t;
  }

  void SharePartials(std::uint32_t number) {
    const auto size = [&](std::uint32_t rank) {
      return Mix(number, rank, 1) % (number % 2 == 0 ? 100 : kPart) + 1;
    };
    float* const mine = exchange_.Partials();
    for (std::int64_t i = 0; i < size(ranks_.rank()); ++i) mine[i] = Say(number, ranks_.rank(), i);
    const absl::Span<const float* const> parts = exchange_.SharePartials(size(ranks_.rank()));
    Expect(parts.size() == ranks_.shape().tensor, "parts", number);
    for (std::uint32_t t = 0; t < parts.size(); ++t) {
      for (std::int64_t i = 0; i < size(Neighbour(t)); ++i) {
        Expect(parts[t][i] == Say(number, Neighbour(t), i), "an exchange", number);
      }
    }
  }

  void ShareLogits(std::uint32_t step) {
    const std::int64_t tensor = ranks_.shape().tensor;
    const std::int64_t rows = Mix(step, 0, 2) % kRows + 1;
    const auto owner = [&](std::int64_t column) {
      for (std::int64_t t = 0; t + 1 < tensor; ++t) {
        if (column < kVocab * (t + 1) / tensor) return static_cast<std::uint32_t>(t);
      }
      return static_cast<std::uint32_t>(tensor - 1);
    };
    float* const tile = exchange_.Logits();
    for (std::int64_t i = 0; i < rows * kVocab; ++i) {
      if (owner(i % kVocab) == ranks_.tensor_rank()) tile[i] = Say(step, owner(i % kVocab), i);
    }
    const Exchange::LogitReaders readers{.all = step % 2 == 0, .first_owner = step % 7};
    exchange_.ShareLogits(rows, readers);
    for (std::int64_t i = 0; i < rows * kVocab; ++i) {
      const std::int64_t reader = (readers.first_owner + i / kVocab) % tensor;
      if (!readers.all && reader != ranks_.tensor_rank()) continue;
      Expect(tile[i] == Say(step, owner(i % kVocab), i), "logits", step);
    }
  }

  static std::int64_t ResidualSize(std::uint32_t step) {
    return Mix(step, 0, 3) % (step % 2 == 0 ? 1000 : kResidual) + 1;
  }
  void Send(std::uint32_t step) {
    std::vector<float> hidden;
    for (std::int64_t i = 0; i < ResidualSize(step); ++i) {
      hidden.push_back(Say(step, ranks_.rank(), i));
    }
    exchange_.SendResidual(hidden.data(), ResidualSize(step));
  }
  void Receive(std::uint32_t step) {
    std::vector<float> hidden(static_cast<std::size_t>(ResidualSize(step)));
    exchange_.ReceiveResidual(hidden.data(), ResidualSize(step));
    for (std::int64_t i = 0; i < ResidualSize(step); ++i) {
      Expect(hidden[i] == Say(step, ranks_.rank() - ranks_.shape().tensor, i), "hidden", step);
    }
  }

  static std::size_t MetadataSize(std::uint32_t step, std::uint32_t rank) {
    return Mix(step, rank, 4) % (step % 3 == 0 ? kMetadata : 50);
  }
  void SendMetadata(std::uint32_t step) {
    const std::vector<std::byte> metadata(MetadataSize(step, ranks_.rank()),
                                          static_cast<std::byte>(step + ranks_.rank()));
    ranks_.SendMetadata(metadata);
  }
  void TakeMetadata() {
    --untaken_;
    const std::uint32_t step = taken_++;
    const absl::Span<const std::vector<std::byte>> all = ranks_.TakeMetadata();
    Expect(all.size() == ranks_.shape().ranks(), "step metadata", step);
    for (std::uint32_t r = 0; r < all.size(); ++r) {
      Expect(
          all[r] == std::vector<std::byte>(MetadataSize(step, r), static_cast<std::byte>(step + r)),
          "step metadata", step);
    }
  }

  Communicator& ranks_;
  Exchange& exchange_;
  std::uint32_t untaken_ = 0, taken_ = 0;
};

int Main(const std::string& transport, ParallelShape shape) {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto number = static_cast<std::uint32_t>(rank);
  const CommLimits limits{.partial_floats = kPart,
                          .logit_floats = kRows * kVocab,
                          .residual_floats = kResidual,
                          .metadata_bytes = kMetadata,
                          .lag = shape.pipeline};
  if (transport == "mpi") {
    std::vector<IndexRange> columns;
    for (std::uint32_t t = 0; t < shape.tensor; ++t) {
      columns.push_back({static_cast<std::uint32_t>(kVocab * t / shape.tensor),
                         static_cast<std::uint32_t>(kVocab * (t + 1) / shape.tensor)});
    }
    MpiCommunicator ranks(shape, number, limits, std::move(columns), kVocab, /*spin=*/false);
    Check(&ranks, &ranks).Run();
  } else {
    auto region = ShareRegion(SharedMemoryCommunicator::RegionBytes(shape, limits));
    if (!region.ok()) return 2;
    SharedMemoryCommunicator ranks(std::make_shared<const SharedRegion>(*std::move(region)), shape,
                                   number, limits, /*spin=*/false);
    Check(&ranks, &ranks).Run();
  }
  MPI_Barrier(MPI_COMM_WORLD);  // nobody leaves while another still needs it
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace flotilla::worker

// Open MPI's components do not free all of their memory. They are unloaded before LeakSanitizer
// looks, so a suppression cannot name them.
extern "C" int __lsan_is_turned_off() { return 1; }

int main(int, char** argv) {
  return flotilla::worker::Main(argv[1],
                                {.tensor = static_cast<std::uint32_t>(std::atoi(argv[2])),
                                 .pipeline = static_cast<std::uint32_t>(std::atoi(argv[3]))});
}
