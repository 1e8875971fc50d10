#include "common/auth/pem.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>

namespace flotilla {
namespace {

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* one) const {
    Free(one);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

Certificate FirstCertificate(std::string_view pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr));
  ERR_clear_error();
  return certificate;
}

}  // namespace

int NoPassphrase(char*, int, int, void*) { return 0; }

absl::Status CheckKeyPair(std::string_view certificate, std::string_view key, absl::Time now) {
  const Certificate own = FirstCertificate(certificate);
  if (own == nullptr) return absl::InvalidArgumentError("certificate: there is none in PEM");
  std::time_t seconds = absl::ToTimeT(now);
  if (X509_cmp_time(X509_get0_notAfter(own.get()), &seconds) < 0) {
    return absl::InvalidArgumentError("certificate: it has expired");
  }
  if (X509_cmp_time(X509_get0_notBefore(own.get()), &seconds) > 0) {
    return absl::InvalidArgumentError("certificate: it is not valid yet");
  }
  const Bio bio(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())));
  const Key private_key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassphrase, nullptr));
  const bool fits = private_key != nullptr && X509_check_private_key(own.get(), private_key.get());
  ERR_clear_error();
  if (private_key == nullptr) {
    return absl::InvalidArgumentError("key: there is none in PEM without a passphrase");
  }
  if (!fits) return absl::InvalidArgumentError("key: it is of another certificate");
  return absl::OkStatus();
}

std::optional<absl::Time> ExpiryOf(std::string_view certificate) {
  const Certificate own = FirstCertificate(certificate);
  std::tm end{};
  if (own == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(own.get()), &end) != 1) {
    return std::nullopt;
  }
  return absl::FromTimeT(timegm(&end));
}

absl::Status CheckAuthorities(std::string_view certificates) {
  if (FirstCertificate(certificates) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError("there is no certificate in PEM");
}

}  // namespace flotilla
