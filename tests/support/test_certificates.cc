#include "tests/support/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>

namespace flotilla::testing {
namespace {

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

X509* ReadCertificate(const std::string& pem) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* one = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return one;
}

EVP_PKEY* ReadKey(const std::string& pem) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  EVP_PKEY* one = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  return one;
}

void Extend(X509* certificate, int id, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// If `authority` is null, the certificate signs itself.
PemPair Make(const PemPair* authority, const std::string& name, long from_s, long to_s) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  std::uint64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1 | 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate), to_s);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  EVP_PKEY* signer = key;
  if (authority == nullptr) {
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    Extend(certificate, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    X509* issuer = ReadCertificate(authority->certificate);
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    X509_free(issuer);
    signer = ReadKey(authority->key);
  }
  X509_sign(certificate, signer, EVP_sha256());
  BIO* out = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(out, certificate);
  BIO* key_out = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(key_out, key, nullptr, nullptr, 0, nullptr, nullptr);
  PemPair pair{.certificate = Text(out), .key = Text(key_out)};
  if (authority != nullptr) EVP_PKEY_free(signer);
  EVP_PKEY_free(key);
  X509_free(certificate);
  return pair;
}

}  // namespace

PemPair MakeAuthority(const std::string& name) { return Make(nullptr, name, -60, 3600); }

PemPair Issue(const PemPair& authority, const std::string& name, long from_s, long to_s) {
  return Make(&authority, name, from_s, to_s);
}

}  // namespace flotilla::testing
