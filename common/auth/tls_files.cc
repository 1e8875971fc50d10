#include "common/auth/tls_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/auth/pem.h"

namespace flotilla {
namespace {

absl::Status Refused(const std::string& paths, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(paths, ": ", status.message()));
}

absl::StatusOr<std::shared_ptr<const TlsIdentity>> ReadFiles(const TlsFilesOptions& options,
                                                             bool* others_may_read_key) {
  absl::StatusOr<std::string> certificate = ReadSecretFile(options.certificate, nullptr);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key = ReadSecretFile(options.key, others_may_read_key);
  if (!key.ok()) return key.status();
  absl::StatusOr<std::string> authorities = std::string();
  if (!options.authorities.empty()) {
    authorities = ReadSecretFile(options.authorities, nullptr);
    if (!authorities.ok()) return authorities.status();
    if (absl::Status status = CheckAuthorities(*authorities); !status.ok()) {
      return Refused(options.authorities, status);
    }
  }
  const std::string pair = absl::StrCat(options.certificate, " and ", options.key);
  if (absl::Status status = CheckKeyPair(*certificate, *key, absl::Now()); !status.ok()) {
    return Refused(pair, status);
  }
  absl::StatusOr<std::shared_ptr<const TlsContext>> context =
      TlsContext::Create({.certificate = *certificate,
                          .key = *key,
                          .authorities = *authorities,
                          .offers = options.offers});
  if (!context.ok()) return Refused(pair, context.status());
  return std::make_shared<const TlsIdentity>(
      TlsIdentity{.certificate = *certificate,
                  .key = *std::move(key),
                  .authorities = *std::move(authorities),
                  .expiry = ExpiryOf(*certificate).value_or(absl::InfinitePast()),
                  .context = *std::move(context)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(TlsFilesOptions options) {
  bool others_may_read = false;
  absl::StatusOr<std::shared_ptr<const TlsIdentity>> identity =
      ReadFiles(options, &others_may_read);
  if (!identity.ok()) return identity.status();
  if (others_may_read) {
    options.log->Warning("a private key can be read by everybody", {{"file", options.key}});
  }
  return std::unique_ptr<TlsFiles>(new TlsFiles(std::move(options), *std::move(identity)));
}

std::shared_ptr<const TlsIdentity> TlsFiles::Get() {
  absl::MutexLock lock(&mu_);
  Look();
  return identity_;
}

TlsFiles::Counts TlsFiles::CountReads() {
  absl::MutexLock lock(&mu_);
  Look();
  return counts_;
}

void TlsFiles::Look() {
  const std::int64_t now_ns = options_.clock->NowNs();
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + absl::ToInt64Nanoseconds(options_.check_every);
  const Stamps stamps = {StampOf(options_.certificate), StampOf(options_.key),
                         StampOf(options_.authorities)};
  const bool changed = stamps != stamps_;
  if (!changed && settled_) return;
  stamps_ = stamps;
  settled_ = !changed;
  absl::StatusOr<std::shared_ptr<const TlsIdentity>> now = ReadFiles(options_, nullptr);
  if (!now.ok()) {
    const std::string complaint = now.status().ToString();
    if (std::exchange(complaint_, complaint) == complaint) return;
    ++counts_.refused;
    options_.log->Error("a new certificate cannot be used; the last good one stays in use",
                        {{"file", options_.certificate}, {"reason", now.status()}});
    return;
  }
  complaint_.clear();
  if ((*now)->certificate == identity_->certificate && (*now)->key == identity_->key &&
      (*now)->authorities == identity_->authorities) {
    return;
  }
  identity_ = *std::move(now);
  ++counts_.taken;
  options_.log->Info("read again", {{"file", options_.certificate}});
}

}  // namespace flotilla
