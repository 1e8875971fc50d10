// FairQueue: chooses which of the waiting jobs a pool's next free thread runs.
//
// A job has a tenant and a size in bytes, which stands for the time that it takes. No job is
// interrupted, so only the choices made here keep one job from waiting for another:
// * By size, jobs are small, medium or large. Larger ones never have all threads: of two or
//   more threads, one is left for small jobs; of three or more, another one is left for small
//   and medium jobs.
// * The smaller class goes first, so a short input passes long ones of its own tenant, too.
//   At most kMaxPassed jobs pass a class that waits and that a free thread could have
//   served (kMaxPassed + 1 if both larger classes wait), so nothing starves.
// * Within a class tenants take turns by bytes: start-time fair queueing (Goyal, Vin and
//   Cheng, 1996). If two tenants both have jobs waiting, neither gets ahead of the other by
//   more than their largest job each. One tenant's jobs keep their order.
// * Tenants share the room by dynamic thresholds (Choudhury and Hahne, 1998): a tenant is
//   refused when it holds kRoomShare times the room that is free. A tenant alone gets 3/4 of
//   the room, and there is always some left for the next tenant.
// Pure: no thread, no clock; one owner. The cost is linear in the number of waiting jobs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace flotilla::router {

class FairQueue {
 public:
  enum class Size : std::uint8_t { kSmall, kMedium, kLarge };
  // The bound of small jobs is about 4,000 tokens of English, which take some 3 ms to encode.
  // The bound of medium jobs is about 65,000 tokens, which take 50 ms.
  static constexpr std::size_t kSmallBytes = 16u << 10;
  static constexpr std::size_t kMediumBytes = 256u << 10;
  static constexpr std::uint32_t kMaxPassed = 8;
  static constexpr std::size_t kRoomShare = 3;

  struct Limits {
    std::uint32_t threads = 1;  // at least 1
    std::size_t max_jobs = 0;   // waiting, of all tenants
    std::size_t max_bytes = 0;  // of the waiting jobs
  };
  struct Job {
    std::uint64_t id = 0;
    Size size = Size::kSmall;
  };

  explicit FairQueue(const Limits& limits) : limits_(limits) {}

  static Size SizeOf(std::size_t bytes);

  // Adds a waiting job. False if there is no room, or none for this tenant.
  bool Push(std::string_view tenant, std::size_t bytes, std::uint64_t id);

  // True when Next has a job for a free thread.
  bool HasNext() const { return Choose().has_value(); }
  // The job that a free thread runs now. None: no job waits, or the classes of those that wait
  // have all the threads that they may have. The caller calls Done when the job ends.
  std::optional<Job> Next();
  void Done(Size size) { --classes_[Index(size)].running; }

  // Removes a waiting job. Its turn is still charged to its tenant.
  void Remove(std::uint64_t id);

  std::size_t waiting() const { return jobs_; }
  std::size_t waiting_bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kSizes = 3;
  struct Waiting {
    std::uint64_t id = 0;
    std::string tenant;
    std::size_t bytes = 0;
    std::uint64_t start = 0;  // in its class's virtual time, bytes
  };
  struct Class {
    std::vector<Waiting> waiting;  // as they came
    // The virtual time at which the work that each tenant has asked for would be done.
    absl::flat_hash_map<std::string, std::uint64_t> finish;
    std::uint64_t now = 0;      // start of the job that was taken last
    std::uint32_t running = 0;  // jobs on threads
    std::uint32_t passed = 0;   // smaller jobs taken while this class could have had the turn
  };
  struct Held {
    std::size_t jobs = 0, bytes = 0;
  };

  static std::size_t Index(Size size) { return static_cast<std::size_t>(size); }
  bool MayRun(std::size_t size) const;
  std::optional<std::size_t> Choose() const;
  bool HasRoom(std::string_view tenant, std::size_t bytes) const;
  void Forget(Class& of);
  Waiting Take(Class& from, std::size_t at);

  const Limits limits_;
  std::array<Class, kSizes> classes_;
  absl::flat_hash_map<std::string, Held> held_;  // by tenants that wait
  std::size_t jobs_ = 0, bytes_ = 0;
};

}  // namespace flotilla::router
