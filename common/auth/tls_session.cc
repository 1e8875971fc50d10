#include "common/auth/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <new>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/auth/pem.h"

namespace flotilla {
namespace {

// A client's certificate and those between it and its authority, which are held until they have
// been checked. OpenSSL's own limit is 100 KB.
constexpr long kMaxChainBytes = 32 << 10;

// Why OpenSSL's last call on this thread failed.
std::string LastError() {
  const unsigned long code = ERR_peek_last_error();
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? text.data() : reason;
}

absl::Status Refused(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), ": ", LastError()));
}

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
std::unique_ptr<BIO, FreeBio> Reader(std::string_view pem) {
  return std::unique_ptr<BIO, FreeBio>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

bool UseChain(SSL_CTX* context, std::string_view pem) {
  const auto bio = Reader(pem);
  X509* own = PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr);
  const bool used = own != nullptr && SSL_CTX_use_certificate(context, own) == 1;
  X509_free(own);
  if (!used) return false;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, next) == 1) continue;  // owns it now
    X509_free(next);
    return false;
  }
  ERR_clear_error();  // the end of the text
  return true;
}

bool UseKey(SSL_CTX* context, std::string_view pem) {
  EVP_PKEY* key = PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, &NoPassphrase, nullptr);
  const bool used = key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1;
  EVP_PKEY_free(key);
  return used && SSL_CTX_check_private_key(context) == 1;
}

// Clients then need a certificate that one of these authorities has issued.
bool TrustAuthorities(SSL_CTX* context, std::string_view pem) {
  const auto bio = Reader(pem);
  int count = 0;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr)) {
    const bool added = X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one) == 1 &&
                       SSL_CTX_add_client_CA(context, one) == 1;
    X509_free(one);
    if (!added) return false;
    ++count;
  }
  if (count == 0) return false;
  ERR_clear_error();
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return true;
}

// Chooses the first of our protocols that the client offers, and refuses a client that offers
// none of them, so that it cannot take our bytes for those of another protocol.
int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                   const unsigned char* theirs, unsigned theirs_bytes, void* context) {
  const auto& ours = *static_cast<const std::string*>(context);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(ours.data());
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_bytes, bytes, static_cast<unsigned>(ours.size()), theirs,
                            theirs_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

// --- The socket, as OpenSSL sees it. Its own way would raise SIGPIPE, and needs a descriptor that
// never blocks.

int SocketOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int WriteSocket(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      send(SocketOf(bio), data, static_cast<std::size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && WouldBlock()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadSocket(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = recv(SocketOf(bio), data, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (received < 0 && WouldBlock()) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}

long ControlSocket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "flotilla socket");
    BIO_meth_set_write(made, &WriteSocket);
    BIO_meth_set_read(made, &ReadSocket);
    BIO_meth_set_ctrl(made, &ControlSocket);
    return made;
  }();
  return method;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Create(
    const TlsContextOptions& options) {
  std::shared_ptr<TlsContext> made(new TlsContext);
  SSL_CTX* const context = made->context_ = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return Refused("TLS");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  // A call of Read handles one record, also if it has no data, so that a peer that sends such
  // records without end holds nobody up.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  // Clients keep what resumes a session (tickets); a cache of the server's would take memory.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  constexpr std::string_view kSessions = "flotilla";
  SSL_CTX_set_session_id_context(context, reinterpret_cast<const unsigned char*>(kSessions.data()),
                                 kSessions.size());
  SSL_CTX_set_max_cert_list(context, kMaxChainBytes);
  if (!UseChain(context, options.certificate)) return Refused("certificate");
  if (!UseKey(context, options.key)) return Refused("key");
  if (!options.authorities.empty() && !TrustAuthorities(context, options.authorities)) {
    return Refused("authorities");
  }
  for (const std::string& name : options.offers) {
    made->offers_ += static_cast<char>(name.size());
    made->offers_ += name;
  }
  if (!made->offers_.empty()) {
    SSL_CTX_set_alpn_select_cb(context, &ChooseProtocol, &made->offers_);
  }
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int socket)
    : context_(std::move(context)), ssl_(SSL_new(context_->context_)) {
  BIO* const bio = ssl_ == nullptr ? nullptr : BIO_new(SocketMethod());
  if (bio == nullptr) {
    SSL_free(ssl_);
    ERR_clear_error();
    throw std::bad_alloc();
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_accept_state(ssl_);
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

TlsSession::Result TlsSession::ResultOf(int returned) {
  const int error = SSL_get_error(ssl_, returned);
  ERR_clear_error();  // the queue is the thread's, so others would find it
  switch (error) {
    case SSL_ERROR_NONE:
      return Result::kDone;
    case SSL_ERROR_WANT_READ:
      return Result::kNeedsInput;
    case SSL_ERROR_WANT_WRITE:
      return Result::kNeedsOutput;
    case SSL_ERROR_ZERO_RETURN:
      return Result::kEnd;
    default:  // after this OpenSSL forbids SSL_shutdown
      ended_ = true;
      return Result::kFailed;
  }
}

TlsSession::Result TlsSession::ShakeHands() { return ResultOf(SSL_do_handshake(ssl_)); }

TlsSession::Transfer TlsSession::Read(char* data, std::size_t size) {
  std::size_t bytes = 0;
  const Result result = ResultOf(SSL_read_ex(ssl_, data, size, &bytes));
  return {.result = result, .bytes = result == Result::kDone ? bytes : 0};
}

bool TlsSession::HasInput() const { return SSL_has_pending(ssl_) == 1; }

TlsSession::Transfer TlsSession::Write(const char* data, std::size_t size) {
  if (ended_) return {.result = Result::kFailed};
  std::size_t bytes = 0;
  while (bytes < size) {
    std::size_t written = 0;  // of one record
    const Result result = ResultOf(SSL_write_ex(ssl_, data + bytes, size - bytes, &written));
    stuck_ = result == Result::kNeedsOutput;
    if (result == Result::kDone) {
      bytes += written;
    } else if (bytes > 0 && result != Result::kFailed) {
      break;
    } else {
      return {.result = result};
    }
  }
  return {.result = Result::kDone, .bytes = bytes};
}

void TlsSession::End() {
  if (std::exchange(ended_, true) || stuck_ || SSL_is_init_finished(ssl_) == 0) return;
  SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace flotilla
