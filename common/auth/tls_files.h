// TlsFiles: the certificate, key and authorities of a public port, which follow changes of their
// files.
//
// As with WatchedFile there is no watcher in the background: Get looks at the files, once per
// `check_every` at most, and reads all of them when one has changed. What they hold is used only
// if it fits together. If it does not, this is logged and counted, and what was good before stays
// in use. Example:
//
//   auto files = TlsFiles::Open({.certificate = "a.pem", .key = "a.key", .clock = &clock,
//                                .log = &log});
//   if (!files.ok()) return files.status();
//   std::shared_ptr<const TlsIdentity> now = (*files)->Get();
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/auth/tls_session.h"
#include "common/auth/watched_file.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"

namespace flotilla {

struct TlsFilesOptions {
  std::string certificate, key;     // paths
  std::string authorities;          // path; empty: clients need no certificate
  std::vector<std::string> offers;  // see TlsContextOptions; of the context alone
  absl::Duration check_every = absl::Seconds(1);
  const Clock* clock = nullptr;  // outlives the object, as does the log
  Logger* log = nullptr;
};

// What the files held at one time. Never changes.
struct TlsIdentity {
  std::string certificate, key, authorities;  // PEM
  absl::Time expiry;                          // of the certificate
  std::shared_ptr<const TlsContext> context;
};

class TlsFiles {
 public:
  // Errors: those of ReadSecretFile; INVALID_ARGUMENT names the file that cannot be used, and says
  // why.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(TlsFilesOptions options);

  // Never null. Another pointer than before: the files hold something else. Any thread.
  std::shared_ptr<const TlsIdentity> Get() ABSL_LOCKS_EXCLUDED(mu_);
  // How often changed files were taken into use, and how often they were not. Looks at the files.
  struct Counts {
    std::int64_t taken = 0, refused = 0;
  };
  Counts CountReads() ABSL_LOCKS_EXCLUDED(mu_);
  bool asks_clients() const { return !options_.authorities.empty(); }

 private:
  using Stamps = std::array<std::optional<FileStamp>, 3>;

  TlsFiles(TlsFilesOptions options, std::shared_ptr<const TlsIdentity> identity)
      : options_(std::move(options)), identity_(std::move(identity)) {}
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TlsFilesOptions options_;
  absl::Mutex mu_;
  std::shared_ptr<const TlsIdentity> identity_ ABSL_GUARDED_BY(mu_);
  std::int64_t next_look_ns_ ABSL_GUARDED_BY(mu_) = 0;
  Stamps stamps_ ABSL_GUARDED_BY(mu_);
  // See FileWatch.
  bool settled_ ABSL_GUARDED_BY(mu_) = false;
  // The last error that was logged, until the files are good.
  std::string complaint_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla
