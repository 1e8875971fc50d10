// WatchedFile: the content of a small file of secrets, which follows changes of the file.
//
// There is no watcher in the background. Get looks at the file, once per `check_every` at
// most, and reads it when it has changed. If the file has become unreadable or wrong, this
// is logged and the last good content stays. Example:
//
//   auto keys = WatchedFile<ApiKeys>::Open({.path = path, .clock = &clock, .log = &log},
//                                          &ApiKeys::Parse);
//   if (!keys.ok()) return keys.status();
//   std::shared_ptr<const ApiKeys> now = (*keys)->Get();
//
// Such a file should be replaced by renaming another over it, because a half-written file
// may also parse.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/auth/secret_digest.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"

namespace flotilla {

inline constexpr std::size_t kMaxSecretFileBytes = 1 << 20;

// The fields by which a changed file is noticed.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::int64_t size = 0, modified_ns = 0, changed_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
// None: there is no such file.
std::optional<FileStamp> StampOf(const std::string& path);

// Reads a whole file. NOT_FOUND, PERMISSION_DENIED: it cannot be read; FAILED_PRECONDITION: it is
// no regular file, or everybody may write to it; RESOURCE_EXHAUSTED: it is larger than
// kMaxSecretFileBytes. `others_may_read`, unless null, is set.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, bool* others_may_read);

struct WatchedFileOptions {
  std::string path;
  absl::Duration check_every = absl::Seconds(1);
  const Clock* clock = nullptr;  // outlives the file, as does the log
  Logger* log = nullptr;
};

// The part of a WatchedFile that does not depend on what the file means. One thread at a time may
// use it.
class FileWatch {
 public:
  explicit FileWatch(WatchedFileOptions options) : options_(std::move(options)) {}

  // Returns the text at the first call, and later whenever the file may have changed and it
  // is time to look. None: there is nothing new. An error to read the file is logged once.
  std::optional<std::string> Look();
  // Records whether the text that Look returned was good.
  void Taken(std::string_view text, const absl::Status& status);

  const std::string& path() const { return options_.path; }

 private:
  void Complain(const absl::Status& status);

  const WatchedFileOptions options_;
  std::int64_t next_look_ns_ = 0;
  std::optional<FileStamp> stamp_;
  // A change right after a read may leave the stamp as it was. At the next look the clock of the
  // file system has moved on, so a changed file is read once more then.
  bool settled_ = false;
  std::optional<SecretDigest> taken_;  // the last text that was good
  std::string complaint_;              // the last error that was logged, until the file is good
};

template <class T>
class WatchedFile {
 public:
  using Parse = std::function<absl::StatusOr<T>(std::string_view text)>;

  // Errors: those of ReadSecretFile and of `parse`, with the path.
  static absl::StatusOr<std::unique_ptr<WatchedFile>> Open(WatchedFileOptions options,
                                                           Parse parse) {
    bool others_may_read = false;
    absl::StatusOr<std::string> text = ReadSecretFile(options.path, &others_may_read);
    if (!text.ok()) return text.status();
    absl::StatusOr<T> parsed = parse(*text);
    if (!parsed.ok()) {
      return absl::Status(parsed.status().code(),
                          absl::StrCat(options.path, ": ", parsed.status().message()));
    }
    if (others_may_read) {
      options.log->Warning("a file of secrets can be read by everybody", {{"file", options.path}});
    }
    return std::unique_ptr<WatchedFile>(
        new WatchedFile(std::move(options), std::move(parse), *std::move(parsed), *text));
  }

  // The result is never null.
  std::shared_ptr<const T> Get() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (const std::optional<std::string> text = watch_.Look()) {
      absl::StatusOr<T> parsed = parse_(*text);
      watch_.Taken(*text, parsed.status());
      if (parsed.ok()) value_ = std::make_shared<const T>(*std::move(parsed));
    }
    return value_;
  }

 private:
  WatchedFile(WatchedFileOptions options, Parse parse, T value, std::string_view text)
      : parse_(std::move(parse)),
        watch_(std::move(options)),
        value_(std::make_shared<const T>(std::move(value))) {
    absl::MutexLock lock(&mu_);
    watch_.Taken(text, absl::OkStatus());
  }

  const Parse parse_;
  absl::Mutex mu_;
  FileWatch watch_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla
