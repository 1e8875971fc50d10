// What certificates may be, and the server's side of TLS, against OpenSSL's own client.
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/auth/pem.h"
#include "common/auth/tls_files.h"
#include "common/auth/tls_session.h"
#include "tests/support/log_lines.h"
#include "tests/support/manual_clock.h"
#include "tests/support/secret_files.h"
#include "tests/support/test_certificates.h"

namespace flotilla {
namespace {

using Result = TlsSession::Result;
using testing::Issue;
using testing::MakeAuthority;
using testing::PemPair;

TEST(PemTest, JudgesCertificatesBeforeTheyAreUsed) {
  const PemPair authority = MakeAuthority("fleet");
  const PemPair member = Issue(authority, "worker"), other = Issue(authority, "other");
  const absl::Time now = absl::Now();
  EXPECT_TRUE(CheckKeyPair(member.certificate, member.key, now).ok());
  EXPECT_TRUE(CheckKeyPair(member.certificate + authority.certificate, member.key, now).ok());
  const auto message = [&](const std::string& certificate, const std::string& key, absl::Time t) {
    return std::string(CheckKeyPair(certificate, key, t).message());
  };
  EXPECT_EQ(message(member.certificate, other.key, now), "key: it is of another certificate");
  EXPECT_EQ(message(member.certificate, "", now), "key: there is none in PEM without a passphrase");
  EXPECT_EQ(message("", member.key, now), "certificate: there is none in PEM");
  EXPECT_EQ(message(member.key, member.key, now), "certificate: there is none in PEM");
  EXPECT_EQ(message(member.certificate, member.key, now + absl::Hours(2)),
            "certificate: it has expired");
  EXPECT_EQ(message(member.certificate, member.key, now - absl::Hours(2)),
            "certificate: it is not valid yet");
  ASSERT_TRUE(ExpiryOf(member.certificate).has_value());
  EXPECT_GT(*ExpiryOf(member.certificate), now);
  EXPECT_LT(*ExpiryOf(member.certificate), now + absl::Hours(2));
  EXPECT_EQ(ExpiryOf(member.key), std::nullopt);
  // Cut anywhere, it is no certificate, and nothing worse happens.
  for (std::size_t bytes = 0; bytes < member.certificate.size() - 2; bytes += 7) {
    EXPECT_FALSE(CheckKeyPair(member.certificate.substr(0, bytes), member.key, now).ok()) << bytes;
    EXPECT_FALSE(CheckAuthorities(member.certificate.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_TRUE(CheckAuthorities(authority.certificate).ok());
}

// --- Sessions ------------------------------------------------------------------

// A session and its client, which take turns over a pair of sockets.
class TlsSessionTest : public ::testing::Test {
 protected:
  // `version`: the highest that the client has; 0: all.
  void Connect(const TlsContextOptions& options, int version = 0) {
    Disconnect();
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets_), 0);
    const auto context = TlsContext::Create(options);
    ASSERT_TRUE(context.ok()) << context.status();
    session_ = std::make_unique<TlsSession>(*context, sockets_[0]);
    client_context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(client_context_.get(), version);
    client_.reset(SSL_new(client_context_.get()));
    SSL_set_fd(client_.get(), sockets_[1]);
    SSL_set_connect_state(client_.get());
  }
  ~TlsSessionTest() override { Disconnect(); }
  void Disconnect() {
    session_.reset();
    for (int& one : sockets_) close(std::exchange(one, -1));
  }

  // How the server's handshake ends.
  Result ShakeHands() {
    for (int turn = 0; turn < 10; ++turn) {
      SSL_do_handshake(client_.get());
      const Result result = session_->ShakeHands();
      if (result == Result::kDone || result == Result::kFailed) {
        SSL_do_handshake(client_.get());
        return result;
      }
    }
    ADD_FAILURE() << "the handshake does not end";
    return Result::kFailed;
  }
  std::string ReadAll(Result* result) {
    std::string text;
    std::string piece(4096, 0);
    while (true) {
      const TlsSession::Transfer read = session_->Read(piece.data(), piece.size());
      *result = read.result;
      if (read.result != Result::kDone) return text;
      text.append(piece, 0, read.bytes);
    }
  }

  struct Free {
    void operator()(SSL* one) const { SSL_free(one); }
    void operator()(SSL_CTX* one) const { SSL_CTX_free(one); }
  };
  const PemPair authority_ = MakeAuthority("a"), own_ = Issue(authority_, "server");
  int sockets_[2] = {-1, -1};
  std::unique_ptr<TlsSession> session_;
  std::unique_ptr<SSL_CTX, Free> client_context_;
  std::unique_ptr<SSL, Free> client_;
};

TEST_F(TlsSessionTest, BytesGoBothWays) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Connect({.certificate = own_.certificate, .key = own_.key}, version);
    EXPECT_EQ(session_->ShakeHands(), Result::kNeedsInput);
    ASSERT_EQ(ShakeHands(), Result::kDone);
    EXPECT_EQ(SSL_version(client_.get()), version);
    EXPECT_FALSE(session_->HasInput());

    Result result{};
    EXPECT_EQ(ReadAll(&result), "");
    EXPECT_EQ(result, Result::kNeedsInput);
    const std::string question(10'000, 'q');
    ASSERT_EQ(SSL_write(client_.get(), question.data(), 10'000), 10'000);
    std::string begin(100, 0);
    EXPECT_EQ(session_->Read(begin.data(), 100).bytes, 100u);
    EXPECT_TRUE(session_->HasInput());  // the rest of the record
    EXPECT_EQ(begin + ReadAll(&result), question);

    // More than the socket takes is written in part, and goes on where it stopped.
    const std::string answer(4 << 20, 'a');
    std::string received, piece(65536, 0);
    std::size_t sent = 0;
    bool waited = false;
    while (received.size() < answer.size()) {
      if (sent < answer.size()) {
        const auto written = session_->Write(answer.data() + sent, answer.size() - sent);
        waited = waited || written.result == Result::kNeedsOutput;
        EXPECT_EQ(written.bytes > 0, written.result == Result::kDone);
        sent += written.bytes;
      }
      const int bytes = SSL_read(client_.get(), piece.data(), 65536);
      if (bytes > 0) received.append(piece, 0, static_cast<std::size_t>(bytes));
    }
    EXPECT_TRUE(waited);
    EXPECT_EQ(received, answer);

    SSL_shutdown(client_.get());
    ReadAll(&result);
    EXPECT_EQ(result, Result::kEnd);
    EXPECT_EQ(session_->Write("still", 5).bytes, 5u);  // the peer may still read
    session_->End();
    EXPECT_EQ(session_->Write("x", 1).result, Result::kFailed);
    EXPECT_EQ(SSL_read(client_.get(), piece.data(), 65536), 5);
    EXPECT_EQ(SSL_read(client_.get(), piece.data(), 65536), 0);
    EXPECT_EQ(SSL_get_error(client_.get(), 0), SSL_ERROR_ZERO_RETURN);
  }
}

TEST_F(TlsSessionTest, APeerThatGoesOrBreaksTheProtocolFails) {
  Connect({.certificate = own_.certificate, .key = own_.key});
  ASSERT_EQ(send(sockets_[1], "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
  EXPECT_EQ(session_->ShakeHands(), Result::kFailed);

  Connect({.certificate = own_.certificate, .key = own_.key});
  ASSERT_EQ(ShakeHands(), Result::kDone);
  ASSERT_EQ(send(sockets_[1], "\x17\x03\x03\x00\x05wrong", 10, 0), 10);
  Result result{};
  EXPECT_EQ(ReadAll(&result), "");
  EXPECT_EQ(result, Result::kFailed);

  Connect({.certificate = own_.certificate, .key = own_.key});
  ASSERT_EQ(ShakeHands(), Result::kDone);
  close(std::exchange(sockets_[1], -1));  // without a word; SIGPIPE would end the test
  ReadAll(&result);
  EXPECT_EQ(result, Result::kFailed);
  EXPECT_EQ(session_->Write("x", 1).result, Result::kFailed);
}

TEST_F(TlsSessionTest, ACallHandlesOneRecord) {
  // So a peer that sends records without data for ever does not hold the thread.
  Connect({.certificate = own_.certificate, .key = own_.key}, TLS1_3_VERSION);
  ASSERT_EQ(ShakeHands(), Result::kDone);
  for (int i = 0; i < 20; ++i) {
    SSL_key_update(client_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    ASSERT_EQ(SSL_do_handshake(client_.get()), 1);
  }
  ASSERT_EQ(SSL_write(client_.get(), "hello", 5), 5);
  std::string piece(100, 0);
  int calls = 1;
  while (session_->Read(piece.data(), piece.size()).result == Result::kNeedsInput) {
    ASSERT_LT(++calls, 100);
  }
  EXPECT_EQ(calls, 21);
  EXPECT_EQ(piece.substr(0, 5), "hello");
}

TEST_F(TlsSessionTest, OldVersionsAreRefused) {
  Connect({.certificate = own_.certificate, .key = own_.key}, TLS1_1_VERSION);
  SSL_set_min_proto_version(client_.get(), TLS1_VERSION);
  SSL_set_cipher_list(client_.get(), "ALL:@SECLEVEL=0");
  EXPECT_EQ(ShakeHands(), Result::kFailed);
}

TEST_F(TlsSessionTest, AClientOfAnotherProtocolIsRefused) {
  for (const auto& [wanted, result] :
       {std::pair("\x02h2", Result::kFailed), std::pair("\x02h2\x08http/1.1", Result::kDone)}) {
    Connect({.certificate = own_.certificate, .key = own_.key, .offers = {"http/1.1"}});
    const std::string names = wanted;
    SSL_set_alpn_protos(client_.get(), reinterpret_cast<const unsigned char*>(names.data()),
                        static_cast<unsigned>(names.size()));
    EXPECT_EQ(ShakeHands(), result) << names;
  }
}

TEST_F(TlsSessionTest, ClientsNeedACertificateWhereAuthoritiesAreGiven) {
  const PemPair client = Issue(authority_, "client"), other = Issue(MakeAuthority("a"), "client");
  const TlsContextOptions options = {
      .certificate = own_.certificate,
      .key = own_.key,
      .authorities = MakeAuthority("b").certificate + authority_.certificate};
  for (const auto& [pair, result] :
       {std::pair<const PemPair*, Result>(nullptr, Result::kFailed),
        std::pair(&other, Result::kFailed), std::pair(&client, Result::kDone)}) {
    Connect(options);
    if (pair != nullptr) {
      BIO* certificate = BIO_new_mem_buf(pair->certificate.data(), -1);
      X509* own = PEM_read_bio_X509(certificate, nullptr, nullptr, nullptr);
      BIO* text = BIO_new_mem_buf(pair->key.data(), -1);
      EVP_PKEY* key = PEM_read_bio_PrivateKey(text, nullptr, nullptr, nullptr);
      SSL_use_certificate(client_.get(), own);
      SSL_use_PrivateKey(client_.get(), key);
      BIO_free(certificate), BIO_free(text), X509_free(own), EVP_PKEY_free(key);
    }
    EXPECT_EQ(ShakeHands(), result);
  }
}

TEST(TlsContextTest, SaysWhatItCannotUse) {
  const PemPair authority = MakeAuthority("a"), own = Issue(authority, "x");
  const auto refusal = [](TlsContextOptions options) {
    const auto made = TlsContext::Create(options);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_EQ(refusal({.certificate = "", .key = own.key}), "certificate: no start line");
  EXPECT_EQ(refusal({.certificate = own.certificate, .key = ""}), "key: unsupported");
  EXPECT_EQ(refusal({.certificate = own.certificate, .key = authority.key}),
            "key: key values mismatch");
  EXPECT_EQ(refusal({.certificate = own.certificate, .key = own.key, .authorities = "nothing"}),
            "authorities: no start line");
}

// --- Files ---------------------------------------------------------------------

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesOptions Write(const PemPair& pair, const std::string& authorities = "") {
    TlsFilesOptions options{.certificate = files_.Write("x.pem", pair.certificate),
                            .key = files_.Write("x.key", pair.key),
                            .clock = &clock_,
                            .log = &log_.logger()};
    if (!authorities.empty()) options.authorities = files_.Write("ca.pem", authorities);
    return options;
  }
  std::unique_ptr<TlsFiles> Open(const TlsFilesOptions& options) {
    auto files = TlsFiles::Open(options);
    EXPECT_TRUE(files.ok()) << files.status();
    return *std::move(files);
  }
  void Later() { clock_.AdvanceNs(1'000'000'000); }

  testing::SecretFiles files_;
  testing::LogLines log_;
  testing::ManualClock clock_;
  const PemPair authority_ = MakeAuthority("a");
  const PemPair first_ = Issue(authority_, "x"), second_ = Issue(authority_, "x", -60, 7200);
};

TEST_F(TlsFilesTest, FollowsItsFiles) {
  const auto files = Open(Write(first_, authority_.certificate));
  EXPECT_TRUE(files->asks_clients());
  const auto before = files->Get();
  EXPECT_EQ(before->certificate, first_.certificate);
  EXPECT_EQ(before->expiry, *ExpiryOf(first_.certificate));
  Later();
  EXPECT_EQ(files->Get(), before);
  Write(second_, authority_.certificate);
  EXPECT_EQ(files->Get(), before) << "it looks once a second";
  Later();
  const auto after = files->Get();
  EXPECT_EQ(after->certificate, second_.certificate);
  EXPECT_EQ(after->key, second_.key);
  EXPECT_NE(after->context, before->context);
  files_.Write("ca.pem", MakeAuthority("b").certificate);
  Later();
  EXPECT_NE(files->Get()->authorities, after->authorities);
  EXPECT_EQ(files->CountReads().taken, 2);
  EXPECT_EQ(files->CountReads().refused, 0);
  EXPECT_EQ(log_.Count("read again"), 2);
}

TEST_F(TlsFilesTest, WhatDoesNotFitTogetherIsNotUsed) {
  const auto files = Open(Write(first_));
  const auto before = files->Get();
  const auto expect_refused = [&](std::int64_t count, const std::string& why) {
    for (int look = 0; look < 3; ++look) {
      Later();
      EXPECT_EQ(files->Get(), before);
    }
    EXPECT_EQ(files->CountReads().refused, count);
    EXPECT_EQ(log_.Count("the last good one stays in use"), count) << "once for each cause";
    EXPECT_EQ(log_.Count(why), 1) << why;
  };
  files_.Write("x.pem", second_.certificate);
  expect_refused(1, "key: it is of another certificate");
  files_.Write("x.pem", first_.certificate);  // the old one again: all is well
  Later();
  EXPECT_EQ(files->Get(), before);
  unlink(files_.Path("x.key").c_str());
  expect_refused(2, "cannot open");
  Write(Issue(authority_, "x", -7200, -3600));
  expect_refused(3, "certificate: it has expired");
  Write(second_);
  Later();
  EXPECT_EQ(files->Get()->certificate, second_.certificate);
  EXPECT_EQ(files->CountReads().taken, 1);
  for (const std::string& line : log_.lines()) EXPECT_EQ(line.find("PRIVATE"), std::string::npos);
}

TEST_F(TlsFilesTest, FilesAreJudgedAtTheStart) {
  const auto refusal = [](const TlsFilesOptions& options) {
    return std::string(TlsFiles::Open(options).status().message());
  };
  TlsFilesOptions options = Write({first_.certificate, second_.key});
  EXPECT_EQ(refusal(options),
            options.certificate + " and " + options.key + ": key: it is of another certificate");
  options = Write(first_, "nothing");
  EXPECT_EQ(refusal(options), options.authorities + ": there is no certificate in PEM");
  options.certificate = files_.Path("none");
  EXPECT_NE(refusal(options).find("cannot open " + options.certificate), std::string::npos);
  options = Write(first_);
  chmod(options.key.c_str(), 0644);
  EXPECT_TRUE(TlsFiles::Open(options).ok());
  EXPECT_EQ(log_.Count("a private key can be read by everybody"), 1);
}

}  // namespace
}  // namespace flotilla
