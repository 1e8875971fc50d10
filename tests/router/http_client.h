// A blocking HTTP/1.1 client over a plain socket, for tests. It sees exactly the bytes that came.
// It can be slow, break the rules, or go away at any point.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace flotilla::router {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // without chunk framing

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  // The payloads of server-sent events, in order.
  std::vector<std::string> events() const {
    std::vector<std::string> found;
    std::size_t at = 0;
    while (at < body.size()) {
      const std::size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event is cut";
      EXPECT_EQ(body.compare(at, 6, "data: "), 0);
      if (end == std::string::npos) break;
      found.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return found;
  }
};

class HttpClient {
 public:
  // `receive_bytes` is the size of the socket's buffer; a small one makes the client slow. 0: the
  // default.
  explicit HttpClient(std::uint16_t port, int receive_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval timeout{30, 0};  // a server that hangs is a failure of the test
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  virtual ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  void Send(const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = SendSome(bytes.data() + sent, bytes.size() - sent);
      if (n <= 0) return;  // the server may close in the middle of a request; its answer says why
      sent += static_cast<std::size_t>(n);
    }
  }
  void SendRequest(const std::string& method, const std::string& path, const std::string& body,
                   const std::string& headers = "") {
    Send(method + " " + path + " HTTP/1.1\r\nhost: localhost\r\n" + headers +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  // Closes the sending side. The client can still read.
  void CloseSending() { shutdown(fd_, SHUT_WR); }

  // Whether there are bytes to read, or the server has closed the connection.
  bool HasInput() const {
    char byte;
    return !input_.empty() || recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
  }

  // Reads until `mark` has come in; false at the end of the stream.
  bool ReadUntil(const std::string& mark) {
    while (input_.find(mark) == std::string::npos) {
      if (!More()) return false;
    }
    return true;
  }
  // True when the server has closed the connection and nothing is left.
  bool AtEnd() { return input_.empty() && !More(); }

  // Reads the answer to a HEAD, which has no body.
  HttpResponse ReadHead() { return Read(/*has_body=*/false); }
  HttpResponse Read(bool has_body = true) {
    HttpResponse response;
    if (!ReadUntil("\r\n\r\n")) {
      ADD_FAILURE() << "no response, only: " << input_;
      return response;
    }
    const std::string head = Take(input_.find("\r\n\r\n") + 4);
    response.status = std::stoi(head.substr(9, 3));
    for (std::size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const std::size_t end = head.find("\r\n", at);
      const std::size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      response.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (response.status == 100) return response;  // the real one follows
    if (!has_body) return response;
    if (response.headers.contains("content-length")) {
      const std::size_t size = std::stoul(response.headers["content-length"]);
      while (input_.size() < size && More()) {
      }
      EXPECT_GE(input_.size(), size);
      response.body = Take(std::min(size, input_.size()));
    } else if (response.headers.contains("transfer-encoding")) {
      ReadChunks(response.body);
    } else {
      while (More()) {
      }
      response.body = Take(input_.size());
    }
    return response;
  }

  HttpResponse Call(const std::string& method, const std::string& path,
                    const std::string& body = "", const std::string& headers = "") {
    SendRequest(method, path, body, headers);
    return Read();
  }

 protected:
  // As send and recv.
  virtual ssize_t SendSome(const char* data, std::size_t size) {
    return send(fd_, data, size, MSG_NOSIGNAL);
  }
  virtual ssize_t ReceiveSome(char* data, std::size_t size) { return recv(fd_, data, size, 0); }

  int fd_ = -1;

 private:
  bool More() {
    char buffer[16384];
    const ssize_t n = ReceiveSome(buffer, sizeof buffer);
    if (n <= 0) return false;
    input_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }
  std::string Take(std::size_t bytes) {
    std::string taken = input_.substr(0, bytes);
    input_.erase(0, bytes);
    return taken;
  }
  void ReadChunks(std::string& body) {
    while (ReadUntil("\r\n")) {
      const std::size_t size = std::stoul(Take(input_.find("\r\n") + 2), nullptr, 16);
      while (input_.size() < size + 2 && More()) {
      }
      body += Take(size);
      EXPECT_EQ(Take(2), "\r\n");
      if (size == 0) return;
    }
    ADD_FAILURE() << "the stream was cut";
  }

  std::string input_;
};

}  // namespace flotilla::router
