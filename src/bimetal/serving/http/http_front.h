#pragma once
// A server of predictions for those who speak HTTP and JSON. docs/serving.md lists what can be
// asked.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/serving/server.h"

namespace bimetal::serving {

/// Letters to tokens and back; called on the server's thread. Errors are told to who asks. Empty:
/// prompts are tokens.
struct TextCoding {
  std::function<std::vector<std::int64_t>(const std::string& text)> encode = {};
  std::function<std::string(const std::vector<std::int64_t>& tokens)> decode = {};
};

struct HttpFrontOptions {
  net::Endpoint listen = {};  ///< port 0: a free one
  net::Token token = {};  ///< what "Authorization: Bearer" has to bring; none: loopback only
  TextCoding coding = {};
  std::chrono::milliseconds answer_patience{60000};  ///< then 504
};

/// GET /health and /v1/model, POST /v1/predict and /v1/generate.
class HttpFront {
 public:
  /// `server` must outlive it. Errors: Unauthorized beyond loopback without a token; System naming
  /// the port.
  HttpFront(const HttpFrontOptions& options, Server& server);
  /// Hangs up on everybody.
  ~HttpFront();
  HttpFront(const HttpFront&) = delete;
  HttpFront& operator=(const HttpFront&) = delete;

  net::Endpoint endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::serving
